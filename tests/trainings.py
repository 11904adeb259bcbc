"""Runs real trainings under the recorder, each once per test session."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from process_groups import once
from scratch import scratch_directory
from stagescope.record.launch import recording_environment
from torch_forks import run_forked

if TYPE_CHECKING:
    import subprocess

TESTS = Path(__file__).parent
SCHEDULES = (
    "GPipe",
    "1F1B",
    "Interleaved1F1B",
    "LoopedBFS",
    "InterleavedZeroBubble",
    "ZBVZeroBubble",
    "DualPipeV",
)
RANKS = 4


@dataclass(frozen=True)
class Training:
    """A recorded training: its recordings, and what the model itself logged, by rank."""

    directory: Path
    log: dict[int, list[list]]
    losses: list[float]


def run_ranks(
    arguments: list[str], environment: dict[str, str], *, ranks: int = RANKS
) -> subprocess.CompletedProcess:
    """Run a script, named by the first of `arguments`, as the ranks of one training."""
    return run_forked(TESTS / "fork_ranks.py", ranks, *arguments, environment=environment)


@once
def record_training(
    schedule: str,
    *,
    steps: str | None = None,
    recorded: bool = True,
    compiled: bool = True,
    gpu: bool = False,
) -> Training:
    """Train three steps of `schedule` on four processes; raises with the training's output if it fails."""
    root = scratch_directory("training")
    directory, truth = root / "recording", root / "truth"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not compiled:
        environment["STAGESCOPE_COMPILED"] = "0"
    if recorded:
        environment = recording_environment(directory, steps=steps, run=schedule, inherited=environment)
    wrapped = [str(TESTS / "simulated_gpu_training.py")] if gpu else []
    done = run_ranks([*wrapped, str(TESTS / "probed_training.py"), schedule, str(truth)], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    logs = {rank: json.loads((truth / f"rank{rank}.json").read_text()) for rank in range(RANKS)}
    losses = next(one["losses"] for one in logs.values() if one["losses"])
    return Training(directory, {rank: one["log"] for rank, one in logs.items()}, losses)


@once
def train_in_one_process(script: str, *options: str) -> tuple[Path, dict[str, object]]:
    """Return the directory that a single-process script recorded into, and what it printed."""
    directory = scratch_directory("training")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = run_forked(TESTS / script, directory, *options, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory, json.loads(done.stdout.splitlines()[-1])
