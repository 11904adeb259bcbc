"""Whether the estimated error covers the error of clocks whose ranks leave gradient reductions apart.

    python benchmarks/align_exits.py [--seeds 1] [--first 90000] [PLAN ...]

Each plan is run with ranks that leave up to 0 to 3 ms apart: at random in each call, and by a constant for each rank
or replica. Prints a row of a table for each: in how many machines of all runs every error was within the estimated one,
the median error and the median estimated error. Large plans have fewer runs.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from skewed_exits import Exits, plant_exits
from stagescope.clocks import align_clocks

WITH_MESSAGES = Exits(replicas=12, stages=4, messages=8)
PLANS = {
    "2 replicas": Exits(replicas=2),
    "2 replicas, 5 steps": Exits(replicas=2, steps=5),
    "2 replicas, one always last": Exits(replicas=2, straggler_ns=1e7),
    "2 replicas of 2 stages, messages": Exits(replicas=2, stages=2, messages=8),
    "8 replicas, one always last": Exits(replicas=8, straggler_ns=1e7),
    "8 replicas, durations vary by 10 %": Exits(replicas=8, duration_noise=0.1),
    "40 replicas": Exits(),
    "40 replicas, 3 steps": Exits(steps=3),
    "40 replicas, 60 steps, 60 ppm": Exits(steps=60, drift_ppm=60.0),
    "40 replicas, reductions of 0.1 ms": Exits(duration_ns=1e5),
    "12 replicas of 4 stages, messages": WITH_MESSAGES,
    "the same, constant per replica": replace(WITH_MESSAGES, by="replica"),
    "the same, one stage of 4 skewed": replace(WITH_MESSAGES, skewed_stages=(1,)),
    "the same, one replica always last": replace(WITH_MESSAGES, straggler_ns=1e7),
    "250 replicas, 20 steps": Exits(replicas=250, steps=20),
}
SIZES_US = (0, 30, 100, 300, 1_000, 3_000)
FEW, MACHINES_OF_RUNS = 10, 160
"""A plan is run at most so often for each of the seeds asked for, and until it has had about so many machines."""


def main() -> None:
    """Print one row per plan and kind of skew, as a table in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plans", nargs="*", default=list(PLANS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first", type=int, default=90_000)
    asked = parser.parse_args()
    print(_row(("plan", "exits apart", *(f"{size:,} us" for size in SIZES_US))))
    print(_row(("---",) * (2 + len(SIZES_US))))
    for name in asked.plans:
        for kind in ("random_ns", "constant_ns"):
            cells = [_cell(PLANS[name], kind, size, asked) for size in SIZES_US]
            print(_row((name, "at random" if kind == "random_ns" else "always", *cells)), flush=True)


def _cell(plan: Exits, kind: str, size_us: int, asked: argparse.Namespace) -> str:
    """Return covered and all machines, the median error and the median estimated error."""
    if not size_us and kind == "constant_ns":
        return ""
    runs = asked.seeds * max(1, min(FEW, MACHINES_OF_RUNS // (plan.replicas * plan.stages)))
    parts = []
    for number in range(runs):
        planted = plant_exits(replace(plan, **{kind: 1e3 * size_us}, seed=asked.first + number))
        parts.append(planted.errors_ns(align_clocks(planted.timeline).timeline))
    found = pl.concat(parts)
    covered = found["is_covered"].fill_null(value=False).sum()
    errors_us = [f"{found[name].median() / 1e3:.0f}" for name in ("error_ns", "estimated_ns")]
    return f"{covered} of {found.height}; {errors_us[0]} / {errors_us[1]}"


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
