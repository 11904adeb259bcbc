"""Whether the estimated error covers the error of runs without a slew, and how much larger it is.

    python benchmarks/align_estimates.py [--seeds 3] [--first 52000] [PLAN ...]

The plans are those of tests/clocks/test_uncertainty.py. Prints a row of a table for each: the median error, the median
estimated error, the median of their ratio, how many timestamps have errors below the estimated one, and how many
slews were found, of which there are none.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "clocks"))

from test_uncertainty import PLANS, errors_of

HEAD = ("plan", "median error us", "median estimated us", "median ratio", "covered", "slews")


def main() -> None:
    """Print one row per plan, as a table in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plans", nargs="*", default=list(PLANS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=52_000)
    asked = parser.parse_args()
    print(_row(HEAD))
    print(_row(("---",) * len(HEAD)))
    for name in asked.plans:
        runs = [errors_of(replace(PLANS[name], seed=asked.first + number)) for number in range(asked.seeds)]
        found = pl.concat([errors for errors, _ in runs])
        error_ns, estimated_ns = found["error_ns"], found["estimated_error_ns"]
        cells = (
            name,
            f"{error_ns.median() / 1e3:.1f}",
            f"{estimated_ns.median() / 1e3:.1f}",
            f"{(estimated_ns / error_ns.clip(lower_bound=1)).median():.1f}",
            f"{(error_ns <= estimated_ns).sum()} of {found.height}",
            str(sum(len(aligned.clocks.slews) for _, aligned in runs)),
        )
        print(_row(cells), flush=True)


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
