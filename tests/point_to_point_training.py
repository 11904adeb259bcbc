"""A pipeline of two stages that is written by hand, with each way in which torch moves tensors between ranks.

Usage: fork_ranks.py 2 point_to_point_training.py [marked]

Each micro-batch is sent in another way, and each step ends with collectives of all kinds of calls. With ``marked``, the
forwards are marked with ``record.span``. Every rank prints its losses, the sums of its collectives, and its weights.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

STEPS, WIDTH = 3, 16
WAYS = ("blocking", "any source", "handle", "batch")


def send(tensor, to, way, tag):
    if way == "handle":
        return [dist.isend(tensor, to, tag=tag)]
    if way == "batch":
        return dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, to, tag=tag)])
    dist.send(tensor, to, tag=tag)
    return []


def receive(sender, way, tag):
    tensor = torch.empty(4, WIDTH)
    if way == "handle":
        dist.irecv(tensor, sender, tag=tag).wait()
    elif way == "batch":
        for handle in dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, sender, tag=tag)]):
            handle.wait()
    else:
        dist.recv(tensor, None if way == "any source" else sender, tag=tag)
    return tensor


def forward(layer, value, microbatch, rank):
    if "marked" not in sys.argv:
        return torch.tanh(layer(value))
    from stagescope import record  # noqa: PLC0415  # only if it is used

    with record.span("forward", stage=rank, microbatch=microbatch):
        return torch.tanh(layer(value))


def reduce():
    """Return the sum of what each collective of torch.distributed, DTensor and functional collectives returns."""
    everywhere, handle = torch.ones(2), dist.all_reduce(torch.ones(3), async_op=True)
    dist.all_reduce(everywhere)
    handle.wait()
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as together:
        dist.all_reduce(everywhere)
        dist.all_reduce(torch.ones(3))
    together.wait()
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    seen_otherwise = functional.all_reduce(torch.ones(4), "sum", mesh).view(2, 2)
    gathered = DTensor.from_local(torch.ones(1), mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    several = functional.all_reduce_coalesced([torch.ones(1), torch.ones(2)], "sum", dist.group.WORLD)
    shard = functional.reduce_scatter_tensor(torch.ones(2), "sum", 0, (mesh, 0))
    return sum(
        float(each.sum()) for each in (everywhere, seen_otherwise, gathered.to_local(), *several, shard)
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    layer, losses = nn.Linear(WIDTH, WIDTH), []
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for _ in range(STEPS):
        kept, handles = [], []
        for tag, way in enumerate(WAYS):
            value = receive(0, way, tag) if rank else torch.randn(4, WIDTH)
            value.requires_grad_(True)
            output = forward(layer, value, tag, rank)
            kept.append((value, output))
            if not rank:
                handles += send(output.detach(), 1, way, tag)
        for value, output in kept:
            if rank:
                losses.append(output.square().mean())
                losses[-1].backward()
                dist.send(value.grad, 0)
            else:
                output.backward(receive(1, "blocking", 0))
        for handle in handles:
            handle.wait()
        losses.append(torch.tensor(reduce()))
        optimizer.step()
        optimizer.zero_grad()
    weight = float(layer.weight.detach().to(torch.float64).sum())
    sys.stdout.write(f"{rank} {[float(loss.detach()) for loss in losses]} {weight}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
