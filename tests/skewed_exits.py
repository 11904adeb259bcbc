"""Planted runs of replicas whose ranks leave gradient reductions apart, on clocks known to the nanosecond.

Every machine has one rank, which is one stage of a replica. Each step, the ranks of a stage enter a reduction at
different moments, and leave it some time after the last one entered: `duration_ns` later, plus their exit skew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stagescope.model import CLOCKS, RANKS, SPANS, Timeline, empty_timeline
from stagescope.model.validate import conform

ORIGIN_NS = 1_763_600_000_000_000_000
FLOOR_NS, SPREAD_NS = 20_000.0, 40_000.0


@dataclass(frozen=True)
class Exits:
    """A planted run of `replicas` times `stages` machines.

    Ranks leave a reduction later by up to `random_ns` that differs from call to call, and by up to `constant_ns` that
    is always the same: of each rank (`by` rank), or of all ranks of a replica (`by` replica); or only those of the
    second replica leave later, by exactly that (`by` one). `skewed_stages` are the stages with exit skew, all if empty.
    `lag_ns` is the spread of the entries, and `straggler_ns` by how much later the first replica enters. `messages` go
    each way between neighboring stages in each step.
    """

    replicas: int = 40
    stages: int = 1
    steps: int = 30
    random_ns: float = 0.0
    constant_ns: float = 0.0
    by: str = "rank"
    skewed_stages: tuple[int, ...] = ()
    duration_ns: float = 1e6
    duration_noise: float = 0.0
    lag_ns: float = 5e6
    straggler_ns: float = 0.0
    step_ns: float = 4e8
    messages: int = 0
    drift_ppm: float = 20.0
    seed: int = 0


@dataclass(frozen=True)
class PlantedExits:
    """A run as recorded, and the true time of the start of every span, on the clock of the first machine."""

    timeline: Timeline
    truth: pl.DataFrame

    def errors_ns(self, aligned: Timeline) -> pl.DataFrame:
        """Return the largest error of each clock but the first, and whether all errors are within the stated ones.

        Columns: clock, error_ns, estimated_ns (null without an estimate), is_covered.
        """
        pieces = aligned.clocks.select("clock", "estimated_error_ns", piece_ns="start_ns").sort("piece_ns")
        found = (
            aligned.spans.join(self.timeline.ranks.select("rank", "clock"), on="rank")
            .join(self.truth, on="bytes")
            .with_columns(error_ns=(pl.col("start_ns") - pl.col("true_ns")).abs())
            .sort("start_ns")
            .join_asof(pieces, left_on="start_ns", right_on="piece_ns", by="clock", check_sortedness=False)
        )
        first = self.timeline.ranks["clock"][0]
        return (
            found.filter(pl.col("clock") != first)
            .group_by("clock")
            .agg(
                is_covered=(pl.col("error_ns") <= pl.col("estimated_error_ns")).all(),
                estimated_ns=pl.max("estimated_error_ns"),
                error_ns=pl.max("error_ns"),
            )
            .sort("clock")
        )


def plant_exits(plan: Exits) -> PlantedExits:
    """Return a run of this plan; the same plan gives the same run."""
    rng = np.random.default_rng(plan.seed)
    count = plan.replicas * plan.stages
    begin_ns = np.arange(plan.steps)[:, None, None] * plan.step_ns
    late_ns = plan.straggler_ns * (np.arange(plan.replicas) == 0)[None, :, None]
    entered_ns = begin_ns + 0.6 * plan.step_ns + late_ns
    entered_ns = entered_ns + rng.uniform(0, plan.lag_ns, (plan.steps, plan.replicas, plan.stages))
    last_ns = entered_ns.max(axis=1, keepdims=True)
    duration_ns = plan.duration_ns * (1 + rng.exponential(1.0, last_ns.shape) * plan.duration_noise)
    left_ns = last_ns + duration_ns + _skew_ns(plan, rng, entered_ns.shape)
    rank = np.broadcast_to(np.arange(count).reshape(1, plan.replicas, plan.stages), entered_ns.shape)
    step, _, stage = np.indices(entered_ns.shape)
    reductions = pl.DataFrame(
        {
            "rank": rank.ravel(),
            "kind": "grad_reduce",
            "step": step.ravel(),
            "stage": stage.ravel(),
            "start_ns": entered_ns.ravel(),
            "end_ns": left_ns.ravel(),
        }
    )
    spans = pl.concat([reductions, *_messages(plan, rng)], how="diagonal_relaxed")
    spans = spans.with_columns(lane=pl.lit("comm"), bytes=pl.int_range(pl.len()))
    offset_ns = rng.uniform(-1e6, 1e6, count)
    rate = 1e-6 * rng.uniform(-plan.drift_ppm, plan.drift_ppm, count)

    def read(name: str, clock: np.ndarray) -> pl.Series:
        true_ns = spans[name].to_numpy()
        shown_ns = true_ns + offset_ns[clock] + rate[clock] * true_ns
        return pl.Series(name, np.rint(shown_ns).astype(np.int64) + ORIGIN_NS)

    own = spans["rank"].to_numpy()
    recorded = spans.with_columns(read("start_ns", own), read("end_ns", own))
    truth = spans.select("bytes", true_ns=read("start_ns", np.zeros_like(own)))
    return PlantedExits(_timeline(plan, recorded), truth.with_columns(pl.col("bytes").cast(pl.Int64)))


def _skew_ns(plan: Exits, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    own = (1, plan.replicas, 1 if plan.by == "replica" else plan.stages)
    constant_ns = rng.uniform(0, plan.constant_ns, own)
    if plan.by == "one":
        constant_ns = plan.constant_ns * (np.arange(plan.replicas) == 1)[None, :, None]
    skew_ns = rng.uniform(0, plan.random_ns, shape) + constant_ns
    stages = plan.skewed_stages or range(plan.stages)
    return skew_ns * np.isin(np.arange(plan.stages), list(stages))


def _messages(plan: Exits, rng: np.random.Generator) -> list[pl.DataFrame]:
    """Return sends and receives between neighboring stages, spread over the first half of each step."""
    frames = []
    for way, kind in ((1, "forward"), (-1, "backward")):
        shape = (plan.steps, plan.replicas, plan.stages - 1, plan.messages)
        step, replica, stage, number = (axis.ravel() for axis in np.indices(shape))
        source = replica * plan.stages + stage + (way < 0)
        sent_ns = step * plan.step_ns + rng.uniform(0, 0.5 * plan.step_ns, len(step))
        arrived_ns = sent_ns + FLOOR_NS + rng.exponential(SPREAD_NS, len(step))
        common = {"step": step, "microbatch": number}
        for end, rank, peer in (("send", source, source + way), ("recv", source + way, source)):
            start = sent_ns if end == "send" else arrived_ns - rng.uniform(1e5, 1e6, len(step))
            over = sent_ns + 10_000.0 if end == "send" else arrived_ns
            frames.append(
                pl.DataFrame(
                    {
                        **common,
                        "kind": [f"{end}_{kind}"] * len(step),
                        "rank": rank,
                        "peer": peer,
                        "stage": rank % plan.stages,
                        "start_ns": start,
                        "end_ns": over,
                    }
                )
            )
    return [frame for frame in frames if frame.height]


def _timeline(plan: Exits, spans: pl.DataFrame) -> Timeline:
    count = plan.replicas * plan.stages
    names = [f"node-{number:05}" for number in range(count)]
    ranks = pl.DataFrame({"rank": range(count), "machine": names, "clock": names}).with_columns(
        pp=pl.col("rank") % plan.stages, dp=pl.col("rank") // plan.stages
    )
    clocks = pl.DataFrame({"machine": names, "clock": names}).with_columns(
        offset_ns=pl.lit(0), method=pl.lit("wall clock, not aligned")
    )
    empty = empty_timeline()
    return Timeline(
        conform(spans, SPANS), conform(ranks, RANKS), empty.steps, conform(clocks, CLOCKS), empty.diagnostics
    )
