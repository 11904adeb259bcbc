"""A training with four stages that stops in its sixth step, in one of several ways: hanging_training.py HOW."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

MICROBATCHES, WIDTH, STEPS, BAD_STEP = 4, 8, 8, 5


class Stage(nn.Module):
    def __init__(self, how, rank):
        super().__init__()
        self.layer, self.how, self.rank = nn.Linear(WIDTH, WIDTH), how, rank
        self.step = self.calls = 0

    def forward(self, values):
        self.calls += 1
        if self.how == "sleep" and self.rank == 2 and (self.step, self.calls) == (BAD_STEP, 2):
            time.sleep(1000)
        return self.layer(values)


def end_step(how, rank, step):
    """Reduce something over all ranks, as trainings do with their losses, or what `how` states."""
    value = torch.ones(1)
    if step == BAD_STEP and rank == 3 and how == "receive":
        dist.recv(value, src=0)
    elif step == BAD_STEP and rank == 3 and how == "mismatch":
        dist.all_gather([torch.zeros(1) for _ in range(dist.get_world_size())], value)
    elif step == BAD_STEP and rank in {1, 2} and how == "sends":
        dist.send(torch.ones(2**22), dst=3 - rank)  # both send, neither receives
    else:
        dist.all_reduce(value)


def make_stage(how):
    """Return the stage of this rank: of four, or of two with two replicas."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    module = Stage(how, rank)
    if how != "replicas":
        return PipelineStage(module, rank, ranks, torch.device("cpu"))
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("dp", "pp"))
    replica = DistributedDataParallel(module, process_group=mesh.get_group("dp"))
    return PipelineStage(
        replica, mesh.get_local_rank("pp"), 2, torch.device("cpu"), group=mesh.get_group("pp")
    )


def main(how):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    stage = make_stage(how)
    module = getattr(stage.submod, "module", stage.submod)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    batch = torch.ones(2 * MICROBATCHES, WIDTH)
    for step in range(STEPS):
        if how == "stop":
            time.sleep(0.3)  # a recording has a file half a second after its first span
        module.step, module.calls = step, 0
        if step == BAD_STEP and rank == 1 and how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if how == "replicas" and step == BAD_STEP and rank == 2:
            time.sleep(1000)
        if stage.is_first:
            schedule.step(batch)
        else:
            schedule.step(**({"target": torch.zeros_like(batch)} if stage.is_last else {}))
        end_step(how, rank, step)


if __name__ == "__main__":
    main(sys.argv[1])
