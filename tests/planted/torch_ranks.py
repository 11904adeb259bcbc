"""Trains with torch.distributed.pipelining and DDP, or FSDP2.

Usage: PLANT=... fork_ranks.py 4 torch_ranks.py ddp|fsdp
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from planted.plants import MICROBATCHES, REPLICAS, STAGES, STEPS, Diary, Stage, loader


def clip(parameters, group):
    """Clip by the norm over the stages of a pipeline."""
    norm = torch.stack([weight.grad.pow(2).sum() for weight in parameters if weight.grad is not None]).sum()
    dist.all_reduce(norm, group=group)
    nn.utils.clip_grad_norm_(parameters, float(norm.sqrt()) + 1)


def main():
    kind = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (REPLICAS, STAGES), mesh_dim_names=("dp", "pp"))
    index, replica = mesh.get_local_rank("pp"), mesh.get_local_rank("dp")
    diary = Diary(dist.get_rank(), index, replica)
    torch.manual_seed(index)
    module = Stage(index, replica)
    if kind == "ddp":
        module = DistributedDataParallel(module, process_group=mesh.get_group("dp"))
    else:
        fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    stage = PipelineStage(module, index, STAGES, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    weights = [weight for name, weight in module.named_parameters() if "heavy" not in name]
    optimizer = torch.optim.SGD(weights, lr=0.1)
    batches = iter(loader(index, replica))
    for _ in range(STEPS):
        batch = next(batches)
        diary.begin()
        losses = []
        if index:
            schedule.step(target=torch.zeros_like(batch), losses=losses)
        else:
            schedule.step(batch)
        diary.losses += losses
        diary.pause()
        if kind == "ddp":
            clip(weights, mesh.get_group("pp"))
        optimizer.step()
        module.zero_grad()
    diary.write()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
