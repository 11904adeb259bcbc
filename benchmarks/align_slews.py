"""Whether bounds and estimated errors hold on random hard runs of clocks that are slewed, without a raw clock.

    python benchmarks/align_slews.py [--count 40] [--first 2000] [--neighbors]

Each run is drawn from its seed: three to six machines, up to three slews of 100 to 70,000 ppm of either sign at any
time, drift and wander, receivers that wait in one direction only, collectives, and in some runs a clock that is set as
well, or set and soon set back. `--neighbors`: two neighboring machines are slewed at overlapping times. Prints a row
for each run with timestamps outside of their bounds or with fewer than 99 % of the errors below the estimated one, and
a line of totals. The last numbers are medians over the starts of spans of all runs: the error, the estimated error,
and how many times as large it is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from planted_clocks import TIMESTAMPS, ClockSlew, ClockStep, Plan, Planted, plant, uncovered
from stagescope.clocks import align_clocks

GOAL = 0.99


def main() -> None:
    """Print each run that misses a goal, and the totals."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--first", type=int, default=2_000)
    parser.add_argument("--neighbors", action="store_true")
    asked = parser.parse_args()
    total = np.zeros(6, np.int64)
    every: list[pl.DataFrame] = []
    for seed in range(asked.first, asked.first + asked.count):
        plan = draw_neighbors(seed) if asked.neighbors else draw(seed)
        planted = plant(plan)
        aligned = align_clocks(planted.timeline).timeline
        checked = sum(planted.timeline.spans[name].drop_nulls().len() for name in TIMESTAMPS)
        outside = len(uncovered(planted, aligned))
        known, bounded = estimates(planted, aligned)
        every.append(known)
        estimated, covered = known.height, int((known["error_ns"] <= known["estimated_error_ns"]).sum())
        is_good = covered >= GOAL * estimated
        total += [checked, outside, estimated, covered, bounded, is_good]
        if outside or not is_good:
            print(f"{outside} outside, {covered} of {estimated} covered: {plan}", flush=True)
    checked, outside, estimated, covered, bounded, good = total.tolist()
    print(
        f"{asked.count} runs, {checked} timestamps, {outside} outside, {bounded} starts of spans bounded; "
        f"estimated error: {covered} of {estimated} covered, {good} runs at 99 % or more"
    )
    _print_medians(pl.concat(every))


def _print_medians(known: pl.DataFrame) -> None:
    error_ns, estimated_ns = known["error_ns"], known["estimated_error_ns"]
    ratio = (estimated_ns / error_ns.clip(lower_bound=1)).median() or 0.0
    medians_us = [(column.median() or 0.0) / 1e3 for column in (error_ns, estimated_ns)]
    print(
        "median error {:.1f} us, median estimated error {:.1f} us, median ratio {:.1f}".format(
            *medians_us, ratio
        )
    )


def draw(seed: int) -> Plan:
    """Return the hard run of a seed."""
    rng = np.random.default_rng(seed)
    one_of = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    ranks = one_of(3, 4, 4, 5, 6)
    steps: dict[str, Any] = {}
    if rng.random() < 0.2:
        size_ns = int(np.exp(rng.uniform(*np.log([50e3, 50e6])))) * one_of(-1, 1)
        machine, when = int(rng.integers(ranks)), float(rng.uniform(0.1, 0.9))
        back = (ClockStep(machine, when + float(rng.uniform(0.01, 0.1)), -size_ns),)
        steps["clock_steps"] = (ClockStep(machine, when, size_ns), *(back if rng.random() < 0.5 else ()))
    return Plan(
        ranks=ranks,
        steps=one_of(3, 6, 12, 20),
        seed=seed,
        slews=tuple(_slew(rng, int(rng.integers(ranks))) for _ in range(one_of(1, 1, 2, 3))),
        drift_ppm=one_of(0.0, 20.0, 50.0),
        wander_ppm=one_of(0.0, 0.0, 1.0, 5.0),
        costs=(1.0,) * (ranks - 2) + one_of((1.0, 1.0), (1.0, 1.0), (0.1, 0.02)),
        collectives=one_of(0, 0, 1, 2),
        **steps,
    )


def draw_neighbors(seed: int) -> Plan:
    """Return a run in which two neighboring machines are slewed at overlapping times."""
    rng = np.random.default_rng(seed)
    one = int(rng.integers(3))
    first = _slew(rng, one)
    second = _slew(rng, one + 1)
    length = second.to_fraction - second.from_fraction
    start = float(rng.uniform(max(0.0, first.from_fraction - length), first.to_fraction))
    moved = ClockSlew(one + 1, start, min(1.0, start + length), second.ppm)
    return Plan(seed=seed, steps=12, slews=(first, moved), wander_ppm=float(rng.choice([0.0, 1.0])))


def _slew(rng: np.random.Generator, machine: int) -> ClockSlew:
    ppm = float(np.exp(rng.uniform(*np.log([100.0, 70_000.0])))) * float(rng.choice([-1, 1]))
    start = float(rng.uniform(0.0, 0.9))
    # The planted truth is the usual rate of the first machine's clock, so that one has to be slewed for less than half.
    longest = 0.6 if machine else 0.3
    return ClockSlew(machine, start, min(1.0, start + float(rng.uniform(0.02, longest))), ppm)


def estimates(planted: Planted, aligned: Any) -> tuple[pl.DataFrame, int]:
    """Return the error and the estimated error of all starts of spans that have one, and how many have bounds."""
    pieces = aligned.clocks.select(
        "clock", "estimated_error_ns", "error_lo_ns", "error_hi_ns", piece_ns="start_ns"
    ).sort("piece_ns")
    errors = planted.errors_ns(aligned).sort("at_ns")
    found = errors.join_asof(pieces, left_on="at_ns", right_on="piece_ns", by="clock", check_sortedness=False)
    known = found.drop_nulls("estimated_error_ns").select(pl.col("error_ns").abs(), "estimated_error_ns")
    return known, found.drop_nulls(("error_lo_ns", "error_hi_ns")).height


if __name__ == "__main__":
    main()
