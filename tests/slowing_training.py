"""A training with four stages of which rank 2 becomes slower, then the usual again: slowing_training.py FIRST LAST N.

From step FIRST to step LAST of N steps, each forward of rank 2 takes twice as long.
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

MICROBATCHES, WIDTH, WORK_S = 4, 8, 0.008


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.work_s = nn.Linear(WIDTH, WIDTH), WORK_S

    def forward(self, values):
        time.sleep(self.work_s)
        return self.layer(values)


def main(first, last, steps):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(Stage(), rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    batch = torch.ones(2 * MICROBATCHES, WIDTH)
    for step in range(steps):
        slow = rank == 2 and first <= step <= last
        stage.submod.work_s = 2 * WORK_S if slow else WORK_S
        if rank == 0:
            schedule.step(batch)
        else:
            schedule.step(**({"target": torch.zeros_like(batch)} if rank == ranks - 1 else {}))
        dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
