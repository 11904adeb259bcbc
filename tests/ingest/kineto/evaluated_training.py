"""A training under torch.profiler from its first step on, with an evaluation after each step and without step marks.

Usage: fork_ranks.py 3 evaluated_training.py SCHEDULE OUT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from probed_training import join_pipeline, make_batch

STEPS = 3


def loss_of_its_own(output, target):
    return (output - target).abs().mean()


def run(call, stages):
    batch = make_batch()
    inputs = (batch,) if any(stage.is_first for stage in stages) else ()
    target = {"target": torch.zeros_like(batch)} if any(stage.is_last for stage in stages) else {}
    call(*inputs, **target)


def main():
    name, out = sys.argv[1], Path(sys.argv[2])
    schedule, stages, weights = join_pipeline(name, loss_of_its_own)
    optimizer = torch.optim.AdamW(weights)
    out.mkdir(parents=True, exist_ok=True)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            run(schedule.step, stages)
            run(schedule.step, stages)
            optimizer.step()
            optimizer.zero_grad()
            run(schedule.eval, stages)
    profiler.export_chrome_trace(str(out / f"rank{dist.get_rank()}.json"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
