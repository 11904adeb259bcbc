"""Whether the guaranteed bounds hold on random mixtures of everything that can go wrong with clocks.

    python benchmarks/align_mixtures.py [--count 600] [--first 500000] [--harsh]

Each mixture is drawn from its seed: schedule, machines, replicas, steps, drift and wander, outliers, lost and
mismatched messages, missing and one-way links, asymmetry, actions without messages, and in six of ten a clock that is
set by 50 us to 50 ms. `--harsh`: always such a clock, one to three steps, mostly outliers. Adjustments at a moment that
no correct observations enclose, both ways between the machine and some other, are not planted: docs/clocks.md excludes
them. Prints a row for each mixture with timestamps outside of their bounds, and a line of totals.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from observed_clocks import observations
from planted_clocks import TIMESTAMPS, ClockStep, Plan, Planted, plant, uncovered
from stagescope.clocks import align_clocks

SCHEDULES = ("1f1b", "1f1b", "1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipev")


def main() -> None:
    """Print each mixture that is not covered, and how many timestamps were checked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--first", type=int, default=500_000)
    parser.add_argument("--harsh", action="store_true")
    asked = parser.parse_args()
    checked = outside = unset = 0
    for seed in range(asked.first, asked.first + asked.count):
        plan = draw(seed, harsh=asked.harsh)
        planted = plant(plan)
        if plan.clock_steps and not observed(planted):
            unset += 1
            plan = replace(plan, clock_steps=())
            planted = plant(plan)
        wrong = uncovered(planted, align_clocks(planted.timeline).timeline)
        checked += sum(planted.timeline.spans[name].drop_nulls().len() for name in TIMESTAMPS)
        outside += len(wrong)
        if len(wrong):
            print(f"{len(wrong)} timestamps outside: {plan}", flush=True)
    print(f"{asked.count} mixtures ({unset} without their step), {checked} timestamps, {outside} outside")


def draw(seed: int, *, harsh: bool) -> Plan:
    """Return the mixture of a seed."""
    rng = np.random.default_rng(seed)
    plan = _machines(rng, seed)
    one_of = lambda *values: values[int(rng.integers(len(values)))]  # noqa: E731
    faults: dict[str, Any] = {
        "drift_ppm": one_of(0.0, 20.0, 50.0, 100.0),
        "wander_ppm": one_of(0.0, 0.0, 1.0, 5.0),
        "corrupt": one_of(0.0, 0.01, 0.02, 0.05) if harsh else one_of(0.0, 0.0, 0.01, 0.02, 0.05),
        "corrupt_ns": one_of((100_000, 1_000_000_000), (50_000, 1_000_000)),
        "mismatched": one_of(0.0, 0.0, 0.01),
        "lost": one_of(0.0, 0.0, 0.01, 0.05),
        "asymmetry_ns": one_of(0, 0, 0, 20_000, 40_000),
        "actions_only": bool(rng.random() < 0.15),
        "steps": one_of(1, 1, 2, 3) if harsh else one_of(1, 1, 2, 2, 3, 4, 5, 6, 8),
    }
    link = int(rng.integers(plan.ranks - 1))
    if rng.random() < 0.15:
        faults["missing_links"] = ((link, link + 1),)
    if rng.random() < 0.15:
        faults["one_way_links"] = ((link, link + 1),)
    if harsh or rng.random() < 0.6:
        machine = int(rng.integers(-(-plan.ranks * plan.replicas // plan.ranks_per_machine)))
        size_ns = int(np.exp(rng.uniform(*np.log([50e3, 50e6])))) * int(rng.choice([-1, 1]))
        faults["clock_steps"] = (ClockStep(machine, float(rng.uniform()), size_ns),)
    return replace(plan, **faults)


def _machines(rng: np.random.Generator, seed: int) -> Plan:
    """Return a run of two to eight machines."""
    ranks, replicas = int(rng.choice([2, 3, 4, 4, 6, 8, 8, 12, 16])), int(rng.choice([1, 1, 2]))
    replicas = replicas if ranks <= 8 else 1
    each = [size for size in (1, 2, 3, 4, 8) if 2 <= -(-ranks * replicas // size) <= 8]
    schedule = SCHEDULES[int(rng.integers(len(SCHEDULES)))]
    microbatches = int(rng.choice([4, 8, 16, 32]))
    if schedule == "interleaved":
        microbatches = max(ranks, microbatches // ranks * ranks)
    if schedule == "dualpipev":
        microbatches = max(microbatches, 2 * ranks)
    return Plan(
        schedule=schedule,
        ranks=ranks,
        replicas=replicas,
        ranks_per_machine=int(rng.choice(each)),
        microbatches=microbatches,
        seed=seed,
    )


def observed(planted: Planted) -> bool:
    """Return whether correct observations both ways between two machines enclose the planted adjustment."""
    (step,) = planted.plan.clock_steps
    first_ns, last_ns = planted.truth["start_ns"].min(), planted.truth["end_ns"].max()
    moment_ns = first_ns + step.fraction * (last_ns - first_ns)
    machine = (planted.timeline.ranks["clock"].str.extract(r"node-(\d+)")).cast(pl.Int32)
    right = planted.timeline.with_spans(_right_spans(planted))
    seen = observations(right, planted.timeline.ranks.select("rank", clock=machine))
    seen = seen.filter(pl.col("waited") | ~pl.col("waited").any().over("source", "target"))
    ways = seen.filter((pl.col("source") == step.machine) | (pl.col("target") == step.machine))
    ways = ways.group_by("source", "target").agg(
        encloses=(pl.min("sent_ns") <= moment_ns) & (pl.max("received_ns") >= moment_ns)
    )
    other = pl.when(pl.col("source") == step.machine).then("target").otherwise("source")
    return ways.filter("encloses").group_by(other.alias("other")).len()["len"].max() == 2


def _right_spans(planted: Planted) -> pl.DataFrame:
    """Return the spans with their true timestamps, without corrupted transfers and those with a wrong name."""
    true = planted.truth.select("name", *TIMESTAMPS, true_microbatch="microbatch")
    spans = planted.timeline.spans.drop(TIMESTAMPS).join(true, on="name", maintain_order="left")
    kind = pl.col("kind").cast(pl.String)
    false = pl.lit(value=False)
    for way, column in (("send", "start_ns"), ("recv", "end_ns")):
        false |= kind.str.contains(way) & pl.col("name").is_in(planted.corrupted.get(column, []))
    spans = spans.filter(~false & pl.col("microbatch").eq_missing(pl.col("true_microbatch")))
    return spans.select(planted.timeline.spans.columns)


if __name__ == "__main__":
    main()
