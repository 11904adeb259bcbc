"""A pipeline training of as many stages as a launcher starts; ranks come from the environment or the arguments.

Usage: mpirun -n 4 python launched_training.py, or call `train` in four processes.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROBATCHES, WIDTH, STEPS = 4, 8, 3
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
RANKS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")


def first(names):
    return next(int(os.environ[name]) for name in names if name in os.environ)


def train(rank, ranks):
    """Train three steps and return the losses, which the last rank has."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    module = nn.Linear(WIDTH, WIDTH)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batch, losses = torch.ones(2 * MICROBATCHES, WIDTH), []
    for _ in range(STEPS):
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(
                **({"target": torch.zeros_like(batch), "losses": losses} if rank == ranks - 1 else {})
            )
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    dist.destroy_process_group()
    return [float(loss.detach()) for loss in losses]


def train_with_ray(ranks):
    """Train in actors of Ray, which learn their ranks from the driver, and return the losses of the last one."""
    import ray  # noqa: PLC0415  # only needed here

    ray.init(num_cpus=ranks, include_dashboard=False, log_to_driver=False)
    workers = [ray.remote(num_cpus=1)(Worker).remote() for _ in range(ranks)]
    losses = ray.get([worker.train.remote(rank, ranks) for rank, worker in enumerate(workers)])
    ray.shutdown()
    return losses[-1]


class Worker:
    def train(self, rank, ranks):
        return train(rank, ranks)


if __name__ == "__main__":
    if sys.argv[1:] == ["ray"]:
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import launched_training  # actors import it by this name

        launched_training.train_with_ray(4)
    else:
        train(first(RANK), first(RANKS))
