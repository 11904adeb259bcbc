"""What is diagnosed in real trainings that were disturbed in one known way.

    python benchmarks/diagnosis_accuracy.py

Each row is a four-process training (tests/disturbed_training.py), what was planted in it, and what the analysis
claims. Planted effects are large, but on a busy machine further claims are true as well: a process that waited for a
CPU was slow. Tests make the same comparisons on planted runs, which nothing disturbs (tests/analysis/statistics).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from scratch import scratch_directory
from stagescope.analysis import build_explained_report
from stagescope.api import read
from stagescope.record.launch import recording_environment
from trainings import TESTS, run_ranks

if TYPE_CHECKING:
    from stagescope.model import Timeline

SCRIPT = TESTS / "disturbed_training.py"
PLANTED = {
    "nothing": "nothing",
    "stage": "stage 2 sleeps 2.5x as long",
    "link": "sends from rank 1 to rank 2 are held back for 10 ms",
    "step": "rank 1 sleeps for 2 s in step 6",
    "noise": "a third of the actions of rank 3 take 3x as long",
}


def main() -> None:
    """Print the findings of every training."""
    for how, planted in PLANTED.items():
        print(f"{how}: {planted}")
        findings = build_explained_report(record(how)).findings
        for code, subject, evidence in findings.select("code", "subject", "evidence").iter_rows():
            print(f"  {code:32} {subject:28} {evidence}")
        if findings.is_empty():
            print("  no finding")


def record(how: str) -> Timeline:
    """Return a disturbed training without the step that sets up connections."""
    directory = scratch_directory("disturbed") / how
    environment = recording_environment(
        directory, steps=None, run=how, inherited={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    done = run_ranks([str(SCRIPT), how], environment)
    assert done.returncode == 0, done.stderr[-3000:]
    timeline = read(directory)
    return timeline.with_spans(timeline.spans.filter(pl.col("step") > 0))


if __name__ == "__main__":
    main()
