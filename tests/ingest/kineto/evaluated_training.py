"""A training under torch.profiler from its first step on, with an evaluation after each step and no mark of steps.

Usage: fork_ranks.py 3 evaluated_training.py SCHEDULE OUT
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.profiler import ProfilerActivity, profile

from probed_training import MICROBATCHES, ROWS, WIDTH, build_stages

STEPS = 3


def loss_of_its_own(output, target):
    return (output - target).abs().mean()


def run(call, stages):
    batch = torch.randn(MICROBATCHES * ROWS, WIDTH)
    batch[:, 0] = torch.arange(MICROBATCHES).repeat_interleave(ROWS)
    inputs = (batch,) if any(stage.is_first for stage in stages) else ()
    target = {"target": torch.zeros_like(batch)} if any(stage.is_last for stage in stages) else {}
    call(*inputs, **target)


def main():
    name, out = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    schedule_class, stages = build_stages(name, dist.get_rank(), dist.get_world_size())
    many = issubclass(schedule_class, schedules.PipelineScheduleMulti)
    schedule = schedule_class(stages if many else stages[0], MICROBATCHES, loss_fn=loss_of_its_own)
    optimizer = torch.optim.AdamW([w for stage in stages for w in stage.submod.parameters()])
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
