"""A pipeline of two stages that is written by hand, with each way in which torch moves a tensor between two ranks.

Usage: fork_ranks.py 2 point_to_point_training.py [marked]

Each micro-batch is sent in another way. With ``marked``, the forwards are marked with ``record.action``. Every rank
prints its losses and weights.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

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
        optimizer.step()
        optimizer.zero_grad()
    weight = float(layer.weight.detach().to(torch.float64).sum())
    sys.stdout.write(f"{rank} {[float(loss.detach()) for loss in losses]} {weight}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
