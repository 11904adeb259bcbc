"""A 1F1B training of two pipelines with two stages each, whose replicas are stated in different ways.

Usage: fork_ranks.py 4 parallel_training.py WAY, where WAY is mesh, hybrid, tensor, ddp, fsdp, plain or none. Prints the
loss of each rank with a last stage.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

WIDTH, MICROBATCHES = 8, 4
MESHES = {
    "mesh": ((2, 2), ("dp", "pp")),
    "hybrid": ((1, 2, 2), ("dp_replicate", "dp_shard", "pp")),
    "tensor": ((2, 2), ("pp", "tp")),
}


def groups_of(way):
    """Return the group of this rank's pipeline, and the one of its replicas."""
    rank = dist.get_rank()
    if way in MESHES:
        shape, names = MESHES[way]
        return init_device_mesh("cpu", shape, mesh_dim_names=names)["pp"].get_group(), None
    pipelines = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    replicas = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])] if way != "none" else [None, None]
    return pipelines[rank // 2], replicas[rank % 2]


def wrapped(model, way, group):
    if way == "ddp":
        return DistributedDataParallel(model, process_group=group)
    if way == "fsdp":
        return fully_shard(model, mesh=dist.device_mesh.DeviceMesh.from_group(group, "cpu"))
    return model


def main():
    way = sys.argv[1]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pipeline, replicas = groups_of(way)
    torch.manual_seed(dist.get_rank(pipeline))
    model = wrapped(nn.Linear(WIDTH, WIDTH), way, replicas)
    stage = PipelineStage(model, dist.get_rank(pipeline), 2, torch.device("cpu"), group=pipeline)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    batch = torch.randn(MICROBATCHES, WIDTH)
    for _ in range(2):
        losses = []
        schedule.step(*((batch,) if stage.is_first else ()), target=torch.zeros_like(batch), losses=losses)
    print(dist.get_rank(), [float(loss.detach()) for loss in losses] if stage.is_last else None)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
