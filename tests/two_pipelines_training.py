"""A training of two ranks that runs two or three pipelines in turn.

Usage: fork_ranks.py 2 two_pipelines_training.py STEPS. In each step, 1F1B of 4 micro-batches and GPipe of 2 train one
model, and 1F1B of 3 another one.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe

WIDTH = 4


class Slow(nn.Module):
    """A layer that takes a given time."""

    def __init__(self, seconds):
        super().__init__()
        self.linear, self.seconds = nn.Linear(WIDTH, WIDTH), seconds

    def forward(self, rows):
        time.sleep(self.seconds)
        return self.linear(rows)


def run(stage, schedule, microbatches):
    batch = torch.ones(microbatches, WIDTH)
    schedule.step(*((batch,) if stage.is_first else ()), target=torch.zeros_like(batch))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first, second = (
        PipelineStage(Slow(seconds), dist.get_rank(), 2, torch.device("cpu")) for seconds in (0.05, 0.0)
    )
    for _ in range(int(sys.argv[1])):
        # A training may create its schedules again in every step.
        run(first, Schedule1F1B(first, 4, loss_fn=nn.MSELoss()), 4)
        run(first, ScheduleGPipe(first, 2, loss_fn=nn.MSELoss()), 2)
        run(second, Schedule1F1B(second, 3, loss_fn=nn.MSELoss()), 3)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
