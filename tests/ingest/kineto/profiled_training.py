"""The training of probed_training.py under torch.profiler. Usage: fork_ranks.py 4 profiled_training.py SCHEDULE OUT."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from probed_training import join_pipeline, make_batch
from probes import finish

WARM_UP = 1
STEPS = 8


def train(schedule, stages, optimizer, batch):
    losses = []
    last = any(stage.is_last for stage in stages)
    inputs = (batch,) if any(stage.is_first for stage in stages) else ()
    schedule.step(*inputs, **({"target": torch.zeros_like(batch), "losses": losses} if last else {}))
    optimizer.step()
    optimizer.zero_grad()


def main():
    name, out = sys.argv[1], Path(sys.argv[2])
    schedule, stages, weights = join_pipeline(name)
    optimizer = torch.optim.SGD(weights, lr=0.1)
    batch = make_batch()
    for _ in range(WARM_UP):
        train(schedule, stages, optimizer, batch)
    out.mkdir(parents=True, exist_ok=True)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            train(schedule, stages, optimizer, batch)
            profiler.step()
    profiler.export_chrome_trace(str(out / f"rank{dist.get_rank()}.json"))
    finish(out / "truth", [])


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
