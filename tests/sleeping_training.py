"""A pipeline training whose stages sleep for a given time.

Usage: fork_ranks.py RANKS sleeping_training.py SCHEDULE STEPS MICROBATCHES MILLISECONDS...

One number of milliseconds per stage of the model, which is the time that it sleeps in each of F, I and W. Everything
else, including the blocks, is from the demo (src/stagescope/demo/train.py).
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from stagescope.demo.train import Block, stage_indices

WIDTH, ROWS = 16, 2


def build_schedule(options, rank, ranks):
    indices = stage_indices(options.schedule, rank, ranks)
    blocks = [Block(WIDTH, options.seconds[index]) for index in indices]
    stages = [
        PipelineStage(block, index, len(options.seconds), torch.device("cpu"))
        for block, index in zip(blocks, indices, strict=True)
    ]
    schedule_class = schedules.get_schedule_class(options.schedule)
    many = issubclass(schedule_class, schedules.PipelineScheduleMulti)
    return stages, schedule_class(stages if many else stages[0], options.microbatches, loss_fn=nn.MSELoss())


def main():
    name, steps, microbatches, *milliseconds = sys.argv[1:]
    options = SimpleNamespace(
        schedule=name, microbatches=int(microbatches), seconds=[float(each) / 1e3 for each in milliseconds]
    )
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    stages, schedule = build_schedule(options, dist.get_rank(), dist.get_world_size())
    batch = torch.randn(options.microbatches * ROWS, WIDTH)
    for _ in range(int(steps)):
        last = any(stage.is_last for stage in stages)
        inputs = (batch,) if any(stage.is_first for stage in stages) else ()
        schedule.step(*inputs, **({"target": torch.zeros_like(batch)} if last else {}))
        for stage in stages:
            stage.submod.zero_grad()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
