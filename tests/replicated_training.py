"""A pipeline training of two stages with two replicas, whose data parallelism and delays are given.

Usage: fork_ranks.py 4 replicated_training.py KIND [DELAY_S]

Ranks 0 and 1 are the first pipeline, 2 and 3 the second. With a delay, the last replica of stage 1 (rank 3) begins the
reduction of its gradients that much later. KIND is ddp, fsdp, hook (DDP with a slow communication hook), hand
(reductions written by hand) or none, which ends with ``os._exit``.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

MICROBATCHES, ROWS, WIDTH, STEPS = 4, 4, 192, 4
LATE_RANK = 3
ACCUMULATED_STEP = 2


class Delay(torch.autograd.Function):
    """Sleeps in the last backward of a step."""

    @staticmethod
    def forward(ctx, value, delay_s):
        ctx.delay_s = delay_s
        return value.view_as(value)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.delay_s)
        return gradient, None


class Stage(nn.Module):
    """Linear layers; the late rank sleeps a little longer in each backward."""

    def __init__(self, delay_s):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.delay_s = delay_s
        self.group = None

    def forward(self, value):
        for layer in self.layers:
            value = torch.tanh(layer(value))
        if self.group is not None:
            dist.all_reduce(
                value.detach().sum(), group=self.group
            )  # as tensor parallelism does, but changes nothing
        return Delay.apply(value, 0.001)


def slow_hook(group, bucket):
    time.sleep(0.15)
    tensor = bucket.buffer()
    return dist.all_reduce(tensor, group=group, async_op=True).get_future().then(lambda done: done.value()[0])


def replicate(module, kind, mesh):
    group = mesh.get_group("dp")
    if kind in ("ddp", "hook"):
        module = DistributedDataParallel(
            module, process_group=group, bucket_cap_mb=1 if kind == "ddp" else 25
        )
    if kind == "hook" and mesh.get_local_rank("pp") == 1:
        module.register_comm_hook(group, slow_hook)
    if kind == "fsdp":
        module.group = group
        for layer in module.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(module, mesh=mesh["dp"])
    return module


def move_rooted(group):
    """Move data from and to the last rank of a group."""
    root, size = dist.get_global_rank(group, 1), dist.get_world_size(group)
    one, several = torch.zeros(4), [torch.zeros(4) for _ in range(size)]
    is_root = dist.get_rank() == root
    dist.broadcast(one, root, group=group)
    dist.reduce(one, root, group=group)
    dist.gather(one, several if is_root else None, root, group=group)
    dist.scatter(one, several if is_root else None, root, group=group)


def reduce_by_hand(module, group, losses):
    """Average the gradients, and the loss, over the replicas."""
    for weight in module.parameters():
        dist.all_reduce(weight.grad, group=group)
        weight.grad /= dist.get_world_size(group)
    dist.all_reduce(losses[-1].detach().clone() if losses else torch.zeros(()), group=group)


def main():
    kind, delay_s = sys.argv[1], float((*sys.argv[2:], "0")[0])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    index = mesh.get_local_rank("pp")
    torch.manual_seed(index)
    module = replicate(Stage(delay_s), kind, mesh)
    stage = PipelineStage(module, index, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.manual_seed(10 + mesh.get_local_rank("dp"))
    losses = []
    for step in range(STEPS):
        # The schedule reduces in its last backward even so.
        accumulating = module.no_sync() if kind == "ddp" and step == ACCUMULATED_STEP else nullcontext()
        batch = torch.randn(MICROBATCHES * ROWS, WIDTH)
        if dist.get_rank() in (LATE_RANK, LATE_RANK - 1):
            time.sleep(delay_s)
        with accumulating:
            if index:
                schedule.step(target=torch.zeros_like(batch), losses=losses)
            else:
                schedule.step(batch)
        if kind == "hand":
            reduce_by_hand(module, mesh.get_group("dp"), losses)
        optimizer.step()
        optimizer.zero_grad()
    weights = [
        float(weight.detach().to(torch.float64).sum()) for weight in module.parameters() if kind != "fsdp"
    ]
    if kind == "none":
        move_rooted(mesh.get_group("dp"))
    # One write: print writes the end of the line separately, and all ranks write to one pipe.
    sys.stdout.write(f"{dist.get_rank()} {[float(loss.detach()) for loss in losses]} {weights}\n")
    sys.stdout.flush()
    dist.barrier()
    if kind == "none":
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
