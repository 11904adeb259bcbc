"""Functions with observed calls in them compile as they do without the recorder."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import sys
import torch
if sys.argv[1]:
    from stagescope import record
    record.start(sys.argv[1])
import torch.distributed as dist
import torch.distributed.pipelining

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.5)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

@torch.compile(backend="eager", fullgraph=True)
def clip():
    return torch.nn.utils.clip_grad_norm_([weight], 1.0)

@torch.compile(backend="eager", fullgraph=True)
def reduce(x):
    dist.all_reduce(x)
    return x + 1

@torch.compile(backend="eager")
def step():
    optimizer.step()
    schedule.step()

for _ in range(2):
    weight.grad = torch.full((3,), 2.0)
    print(clip().item(), reduce(torch.ones(2)).tolist())
    step()
    print(weight.tolist(), optimizer.param_groups[0]["lr"])
print(torch._dynamo.utils.counters["graph_break"])
dist.destroy_process_group()
"""


def run(directory: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, directory], capture_output=True, text=True, timeout=300, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_observed_calls_compile_without_graph_breaks(tmp_path: Path) -> None:
    assert run(str(tmp_path / "recording")) == run("")
