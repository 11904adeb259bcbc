"""A pipeline training of four stages in which one rank is late before the norm of the gradients is reduced.

Usage: fork_ranks.py 4 gradnorm_training.py DELAY_S [loader | gc | accumulate]

Rank 2 is late by DELAY_S after each step of the schedule: it sleeps, or waits for its DataLoader, or for the garbage
collector in one forward. With `accumulate` there are three steps of the schedule before each optimizer step. Every
rank prints when its iterations began, on the monotonic clock, and its losses.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, Dataset

MICROBATCHES, ROWS, WIDTH, STEPS = 8, 2, 16, 6
LATE_RANK = 2


class Batches(Dataset):
    """Batches of ones; loading one takes a given time."""

    def __init__(self, delay_s):
        self.delay_s = delay_s

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        time.sleep(self.delay_s)
        return torch.ones(MICROBATCHES * ROWS, WIDTH)


class Cycle:
    """An object that the garbage collector needs a given time for."""

    def __init__(self, delay_s):
        self.delay_s, self.itself = delay_s, self

    def __del__(self):
        time.sleep(self.delay_s)


class Stage(nn.Module):
    def __init__(self, delay_s):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.delay_s = delay_s
        self.forwards = 0

    def forward(self, value):
        time.sleep(0.001)
        self.forwards += 1
        if self.delay_s and self.forwards % MICROBATCHES == 3:
            Cycle(self.delay_s)
            gc.collect()
        return torch.tanh(self.linear(value))


def main():
    delay_s, how = float(sys.argv[1]), (*sys.argv[2:], "sleep")[0]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    delay_s *= rank == LATE_RANK
    module = Stage(delay_s if how == "gc" else 0)
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    batches = iter(DataLoader(Batches(delay_s if how == "loader" else 0), batch_size=None))
    starts_ns, losses = [], []
    for _ in range(STEPS):
        batch = next(batches)
        starts_ns.append(time.monotonic_ns())
        for _ in range(3 if how == "accumulate" else 1):
            if rank == 0:
                schedule.step(batch)
            else:
                schedule.step(
                    **({"target": torch.zeros_like(batch), "losses": losses} if rank == ranks - 1 else {})
                )
        if how in {"sleep", "accumulate"}:
            time.sleep(delay_s)
        norm = sum(weight.grad.pow(2).sum() for weight in module.parameters())
        dist.all_reduce(norm)
        torch.nn.utils.clip_grad_norm_(module.parameters(), float(norm))
        dist.barrier()
        optimizer.step()
        optimizer.zero_grad()
    sys.stdout.write(json.dumps([rank, starts_ns, [float(loss.detach()) for loss in losses]]) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
