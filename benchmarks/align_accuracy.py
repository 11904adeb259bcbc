"""The error of aligned timestamps, and whether the guaranteed bounds hold, on runs with known clocks.

    python benchmarks/align_accuracy.py [--seeds 30] [--first 70000] [--most-of-pair 64] [SCENARIO ...]

Each scenario is planted with as many seeds (tests/planted_clocks.py), and its table row is printed when it is done.
`worst` is the largest error of any timestamp in any run, except within 0.3 s of a clock adjustment, where a timestamp
may be attributed to the wrong side; `median` is the largest of the runs' median errors; `outside` counts timestamps
outside of their bounds in all runs, including those near adjustments; `interval` is the median run's widest bound;
`found` counts planted adjustments that were found on the right machine.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from planted_clocks import ClockStep, Plan, Planted, plant, uncovered
from stagescope.clocks import Aligned, align_clocks, thinning

AROUND_STEP_NS = 300_000_000
HEAD = ("scenario", "worst us", "median us", "outside", "interval us", "found")

SCENARIOS = {
    "base: 4 machines, 20 ppm, 30 steps": Plan(),
    "16 stages on 8 machines, 50 ppm": Plan(ranks=16, ranks_per_machine=2, drift_ppm=50.0),
    "path longer by 40 us one way": Plan(asymmetry_ns=40_000),
    "rates wander by 5 ppm": Plan(wander_ppm=5.0),
    "3 steps": Plan(steps=3),
    "3 steps, wander": Plan(steps=3, wander_ppm=5.0),
    "1 step": Plan(steps=1),
    "a clock set by +300 us": Plan(clock_steps=(ClockStep(2, 0.5, 300_000),)),
    "a clock set by -300 us": Plan(clock_steps=(ClockStep(1, 0.4, -300_000),)),
    "the last machine set by 3 ms": Plan(clock_steps=(ClockStep(3, 0.6, 3_000_000),)),
    "the reference set by +300 us": Plan(clock_steps=(ClockStep(0, 0.5, 300_000),)),
    "the reference set by -1 ms": Plan(clock_steps=(ClockStep(0, 0.5, -1_000_000),)),
    "two clocks set": Plan(clock_steps=(ClockStep(1, 0.3, -500_000), ClockStep(3, 0.7, 800_000))),
    "a clock set, wander": Plan(wander_ppm=5.0, clock_steps=(ClockStep(2, 0.5, 300_000),)),
    "a clock set, 3 steps": Plan(steps=3, clock_steps=(ClockStep(2, 0.5, 300_000),)),
    "one of 8 set": Plan(ranks=8, clock_steps=(ClockStep(4, 0.5, 300_000),)),
    "one of 2 set": Plan(ranks=2, clock_steps=(ClockStep(1, 0.5, 300_000),)),
    "a clock set by 60 us": Plan(clock_steps=(ClockStep(2, 0.5, 60_000),)),
    "the reference set by -60 us": Plan(clock_steps=(ClockStep(0, 0.5, -60_000),)),
    "set near the end": Plan(clock_steps=(ClockStep(3, 0.985, 400_000),)),
    "the reference set near the end": Plan(clock_steps=(ClockStep(0, 0.98, 400_000),)),
    "set near the beginning": Plan(clock_steps=(ClockStep(1, 0.02, 400_000),)),
    "2 % outliers": Plan(corrupt=0.02),
    "5 % outliers": Plan(corrupt=0.05),
    "5 % outliers, 3 steps": Plan(corrupt=0.05, steps=3),
    "5 % outliers, wander": Plan(corrupt=0.05, wander_ppm=5.0),
    "5 % outliers, with reductions": Plan(corrupt=0.05, replicas=2),
    "5 % outliers of 50 us to 1 ms": Plan(steps=10, corrupt=0.05, corrupt_ns=(50_000, 1_000_000)),
    "5 % outliers, a clock set": Plan(corrupt=0.05, clock_steps=(ClockStep(1, 0.5, 300_000),)),
    "1 % of messages mismatched": Plan(mismatched=0.01),
    "20 % of transfers lost": Plan(lost=0.2),
    "no link between two machines": Plan(missing_links=((1, 2),)),
    "a link that is used one way": Plan(one_way_links=((1, 2),)),
    "actions only": Plan(actions_only=True),
    "actions only, a clock set": Plan(actions_only=True, clock_steps=(ClockStep(2, 0.5, 300_000),)),
    "interleaved, 2 ranks a machine": Plan(schedule="interleaved", ranks=8, ranks_per_machine=2),
    "zero bubble ZB-H1": Plan(schedule="zb-h1"),
    "zero bubble in V, 2 ranks a machine": Plan(schedule="zb-v", ranks=8, ranks_per_machine=2),
    "DualPipeV, 4 ranks a machine": Plan(schedule="dualpipev", ranks=8, ranks_per_machine=4),
    "4 replicas, each on machines of 4": Plan(replicas=4, ranks_per_machine=4),
}


@dataclass(frozen=True)
class Measured:
    """What one run has come to."""

    worst_us: float
    median_us: float
    outside: int
    interval_us: float
    found: int


def main() -> None:
    """Print one row per scenario, as a table in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--first", type=int, default=70_000)
    parser.add_argument("--most-of-pair", type=int, help="thin the observations of a pair to about this many")
    asked = parser.parse_args()
    if asked.most_of_pair:
        thinning.OF_RUN, thinning.LEAST_OF_PAIR = 0, asked.most_of_pair
    print(_row(HEAD))
    print(_row(["---"] * len(HEAD)))
    for name in asked.scenarios:
        plan = SCENARIOS[name]
        runs = [measure(replace(plan, seed=asked.first + number)) for number in range(asked.seeds)]
        planted = len(plan.clock_steps) * asked.seeds
        cells = (
            name,
            f"{max(run.worst_us for run in runs):.1f}",
            f"{max(run.median_us for run in runs):.1f}",
            str(sum(run.outside for run in runs)),
            f"{np.median([run.interval_us for run in runs]):.0f}",
            f"{sum(run.found for run in runs)} of {planted}" if planted else "-",
        )
        print(_row(cells), flush=True)


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def measure(plan: Plan) -> Measured:
    """Return how one run came out; errors are of the machines that were put on the common clock."""
    planted = plant(plan)
    aligned = align_clocks(planted.timeline)
    placed = [machine.clock for machine in aligned.clocks.machines if machine.state == "aligned"]
    errors = planted.errors_ns(aligned.timeline).filter(pl.col("clock").is_in(placed))
    first_ns, last_ns = planted.truth["start_ns"].min(), planted.truth["end_ns"].max()
    for step in plan.clock_steps:
        moment_ns = first_ns + step.fraction * (last_ns - first_ns)
        errors = errors.filter((pl.col("at_ns") - moment_ns).abs() > AROUND_STEP_NS)
    sizes_us = errors["error_ns"].abs() / 1e3
    return Measured(
        worst_us=sizes_us.max() or 0.0,
        median_us=sizes_us.median() or 0.0,
        outside=len(uncovered(planted, aligned.timeline)),
        interval_us=(aligned.clocks.worst_error_ns or 0) / 1e3,
        found=_found(planted, aligned),
    )


def _found(planted: Planted, aligned: Aligned) -> int:
    """Return how many of the planted steps were found, of the right machine and about the right size."""
    left = list(aligned.clocks.adjustments)
    found = 0
    for step in planted.plan.clock_steps:
        right = [
            each
            for each in left
            if each.clock == f"node-{step.machine}/wall"
            and abs(each.size_ns - step.size_ns) < abs(step.size_ns) / 4
        ]
        if right:
            left.remove(right[0])
            found += 1
    return found


if __name__ == "__main__":
    main()
