"""Train 1F1B on four processes that sleep, with one known disturbance, for benchmarks/diagnosis_accuracy.py.

Usage: fork_ranks.py 4 disturbed_training.py HOW, with HOW one of nothing, stage, link, step, noise. `stage` makes the
actions of rank 2 two and a half times as long; `link` holds back what rank 1 sends to rank 2; `step` lets
rank 1 sleep once in step 6; `noise` makes a third of the actions of rank 3 three times as long.
"""

from __future__ import annotations

import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

# The planted disturbances are large enough to be found on a machine that is busy with other work too.
MICROBATCHES = 8
STEPS = 10
WIDTH = 8
SECONDS = 0.006
HELD_SECONDS = 0.010
LONG_STEP = 6
LONG_SECONDS = 2.0


class Work:
    """The sleeps of the actions of this rank."""

    def __init__(self, how, rank):
        self.how, self.rank = how, rank
        self.step = 0
        self.actions = 0
        self.random = random.Random(7)  # noqa: S311 - the same disturbances in every run

    def sleep(self):
        self.actions += 1
        seconds = SECONDS
        if self.how == "stage" and self.rank == 2:
            seconds *= 2.5
        if self.how == "noise" and self.rank == 3 and self.random.random() < 1 / 3:
            seconds *= 3
        if self.how == "step" and self.rank == 1 and self.step == LONG_STEP and self.actions == MICROBATCHES:
            seconds += LONG_SECONDS
        time.sleep(seconds)


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, work):
        ctx.work = work
        work.sleep()
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.work.sleep()
        return grad, None


class Block(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.work = work

    def forward(self, value):
        return torch.tanh(Sleep.apply(self.linear(value), self.work))


class HeldSend:
    """A send of torch with a sleep before it; it compares equal to the function that torch expects."""

    def __call__(self, tensor, *, group_dst=None, group_src=None, **kwargs):
        time.sleep(HELD_SECONDS)
        # A batch of sends and receives names the peer by which of both functions it is.
        return dist.isend(tensor, group_dst=group_src if group_dst is None else group_dst, **kwargs)

    def __eq__(self, other):
        return other is dist.isend

    def __hash__(self):
        return hash(dist.isend)


def hold_forward_sends(stage):
    """Delay the sends of a stage to the next one: after they are issued, and before they are in transit."""
    original = stage.get_fwd_send_ops

    def get_fwd_send_ops(microbatch):
        operations = original(microbatch)
        for operation in operations:
            operation.op = HeldSend()
        return operations

    stage.get_fwd_send_ops = get_fwd_send_ops


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    work = Work(sys.argv[1], rank)
    stage = PipelineStage(Block(work), rank, ranks, torch.device("cpu"))
    if sys.argv[1] == "link" and rank == 1:
        hold_forward_sends(stage)
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    batch = torch.randn(MICROBATCHES, WIDTH)
    for step in range(STEPS):
        work.step, work.actions = step, 0
        inputs = (batch,) if stage.is_first else ()
        schedule.step(*inputs, **({"target": torch.zeros_like(batch)} if stage.is_last else {}))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
