"""A real training on four processes, two of which record with a shifted clock: raw and true timestamps."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl

from scratch import scratch_directory
from shifted_ranks import RANKS, SHIFTED, unshifted_ns
from stagescope.api import read
from stagescope.record.launch import recording_environment
from torch_forks import run_forked

TESTS = Path(__file__).parent
MICROBATCHES, MILLISECONDS = 16, "1"
TIMESTAMPS = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


@dataclass(frozen=True)
class ShiftedTraining:
    """The directory of the recordings, and the time at which the clock of the shifted ranks began to drift."""

    directory: Path
    zero_ns: int

    def true_spans(self) -> pl.DataFrame:
        """Return the raw spans in their order, with the exact timestamps that rank 0's clock would have shown.

        All ranks share CLOCK_MONOTONIC. The offset that the reader added to convert a machine to its wall clock is in
        `clocks` and is subtracted before the shift is reverted.
        """
        raw = read(self.directory, align=False)
        added_ns = dict(
            raw.ranks.join(raw.clocks.select("clock", "offset_ns"), on="clock")
            .select("rank", "offset_ns")
            .iter_rows()
        )
        parts = []
        for (rank,), spans in raw.spans.group_by("rank", maintain_order=True):
            shown = spans.with_columns(pl.col(TIMESTAMPS) - added_ns[rank])
            if rank in SHIFTED:
                shown = shown.with_columns(unshifted_ns(shown[name], self.zero_ns) for name in TIMESTAMPS)
            parts.append(shown.with_columns(pl.col(TIMESTAMPS) + added_ns[0]))
        return pl.concat(parts)


@cache
def shifted_training(schedule: str = "1F1B", steps: int = 60) -> ShiftedTraining:
    """Train with ranks 2 and 3 on a machine with a shifted clock; raises with the output of a rank that fails."""
    directory, zero_ns = scratch_directory("shifted"), time.monotonic_ns()
    inherited = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment = recording_environment(directory, steps=None, run=schedule, inherited=inherited)
    arguments = [schedule, steps, MICROBATCHES, *([MILLISECONDS] * RANKS)]
    script = (TESTS / "shifted_ranks.py", zero_ns, TESTS / "sleeping_training.py")
    done = run_forked(*script, *arguments, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return ShiftedTraining(directory, zero_ns)
