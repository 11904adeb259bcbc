"""Data-parallel replicas: which pipeline finished each step last, and how long the others waited for it.

Replicas synchronize when they reduce their gradients. If that was recorded, a rank waits from when it enters a
reduction until the last of its peers does, minus what it computes meanwhile. If not, all ranks of a pipeline are
assumed to wait from the end of its window until the end of the last window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.idle.step_windows import find_step_windows
from stagescope.analysis.statistics.estimates import Estimates, estimate_means, medians_of_others, rejections
from stagescope.analysis.statistics.rates import FAMILY_RATE
from stagescope.model.coverage import covered_ns, unite, unite_computing
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import reduced, united_rows
from stagescope.model.lazy import InParts, lazily
from stagescope.model.pipelines import find_pipelines
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import Self

    from stagescope.model import Timeline

FEWEST_REPLICAS = 2
EVIDENCE = ("reduction", "window end")
EvidenceType = pl.Enum(list(EVIDENCE))

REPLICA_STEPS = Table(
    "replica_steps",
    "one pipeline in one step that a replica ran as well",
    ("step", "pipeline"),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("group", pl.Int32, "", "Smallest pipeline among its replicas."),
        Column("ranks", pl.Int64, "", "Ranks of the pipeline."),
        Column("end_ns", pl.Int64, "ns", "Last end of its actions."),
        Column("is_last", pl.Boolean, "", "Whether it ended later than all its replicas."),
        Column("lead_ns", pl.Int64, "ns", "How much later the last one ended."),
        Column("wait_ns", pl.Int64, "ns", "How long its ranks waited for other replicas, in total."),
        Column(
            "evidence",
            EvidenceType,
            "",
            "Where wait_ns comes from: recorded reductions, or the ends of windows.",
        ),
    ),
)

REPLICAS = Table(
    "replicas",
    "one pipeline that has replicas",
    ("pipeline",),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("group", pl.Int32, "", "Smallest pipeline among its replicas."),
        Column("replicas", pl.Int64, "", "Pipelines in the group."),
        Column("steps", pl.Int64, "", "Steps that a replica ran as well."),
        Column("last_count", pl.Int64, "", "Steps in which it was last."),
        Column("last_fraction", pl.Float64, "of the steps", "The same as a fraction."),
        Column(
            "wait_ns",
            pl.Int64,
            "ns",
            "How long its ranks waited for other replicas, summed over ranks and steps.",
        ),
        Column(
            "caused_wait_ns",
            pl.Int64,
            "ns",
            "How long ranks of other replicas waited in steps in which it was last.",
        ),
        Column(
            "p_value",
            pl.Float64,
            "",
            "Probability of ending so much later than the others if it were as fast.",
        ),
        Column(
            "extra_ns_per_step",
            pl.Float64,
            "ns",
            "How much later it ended than the last of the others, where it was last, as the mean over all steps.",
        ),
        Column("is_claimed", pl.Boolean, "", "Whether it is claimed as the slow replica."),
    ),
)


@dataclass(frozen=True)
class Replicas:
    """The tables REPLICAS and REPLICA_STEPS, and diagnostics.

    `steps` of a large run is in parts (model/lazy.py), one for each range of steps.
    """

    table: pl.DataFrame
    steps: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def find_replicas(
    timeline: Timeline,
    pipelines: pl.DataFrame | None = None,
    rank_error: tuple[float, float] = (0.0, 0.0),
    least_cost_ns: float = 0.0,
) -> Replicas:
    """Return which pipeline finished last in every step, how long the others waited, and which one is later than them.

    `pipelines` is from find_pipelines; None: it is computed here. `rank_error` is the standard error of how much slower
    a rank is than its peers, and its degrees of freedom: a pipeline is at least as certain (stragglers.py). What costs
    less than `least_cost_ns` per iteration is not claimed. Pipelines are replicas if their tensor- and
    context-parallel coordinates are equal; without coordinates, all are. Both tables are empty for a run without
    replicas. Never raises.
    """
    if pipelines is None:
        pipelines = find_pipelines(timeline.spans, timeline.ranks)
    windows = find_step_windows(timeline.spans, pipelines)
    waits = find_reduction_waits(timeline, windows, pipelines)
    return compare_replicas(timeline, ([windows], [waits]), pipelines, rank_error, least_cost_ns)


def compare_replicas(
    timeline: Timeline,
    measured: tuple[Iterable[pl.DataFrame], Iterable[pl.DataFrame]],
    pipelines: pl.DataFrame,
    rank_error: tuple[float, float],
    least_cost_ns: float,
) -> Replicas:
    """Return what find_replicas does, given the table STEP_WINDOWS and what find_reduction_waits returns.

    Both are `measured` in parts, some steps after the others, which are iterated more than once. Of `timeline`, only
    ranks and clocks are looked at.
    """
    groups = _groups(pipelines, timeline.ranks)

    def compared() -> Iterator[pl.DataFrame]:
        """Yield rows of REPLICA_STEPS, and when each pipeline began (start_ns)."""
        for windows, waits in zip(*measured, strict=True):
            yield _compared(_shared(windows, groups), waits)

    def of_steps() -> Iterator[pl.DataFrame]:
        yield from (rows.select(REPLICA_STEPS.names) for rows in compared())

    lateness = _Lateness.of(measured[0], groups)
    sums = reduced(map(lateness.added, compared()), _sums)
    found = REPLICAS.empty()
    if sums.height:
        found = _totals(sums, lateness.estimate(rank_error), least_cost_ns)
    doubts = tuple(_clock_doubt(timeline)) if sums.height else ()
    steps = InParts(lambda: pl.concat(of_steps()), of_steps)
    return lazily(Replicas, {"table": found, "diagnostics": doubts}, {"steps": steps})


def find_reduction_waits(timeline: Timeline, windows: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline, step and wait_ns: how long ranks waited in recorded reductions that a replica joined.

    `windows` is the table STEP_WINDOWS.
    """
    shared = _shared(windows, _groups(pipelines, timeline.ranks))
    return _reduction_waits(timeline.spans, shared, pipelines)


def _shared(windows: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return the windows of steps that replicas ran, with their group; `groups` is the result of _groups."""
    grouped = windows.join(groups, on="pipeline", maintain_order="left")
    return grouped.filter(pl.len().over("group", "step") >= FEWEST_REPLICAS)


def _groups(pipelines: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline and group: the smallest pipeline with the same tensor- and context-parallel coordinates."""
    first = pl.col("pipeline").min()
    placed = pipelines.filter(pl.col("rank") == pl.col("pipeline")).join(ranks, on="rank", how="left")
    if placed["dp"].null_count():
        return placed.select("pipeline", group=first)
    return placed.select("pipeline", group=first.over("tp", "cp"))


def _compared(windows: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of REPLICA_STEPS of some steps, and start_ns, sorted by step and pipeline."""
    same = ["group", "step"]
    last_ns = pl.col("end_ns").max().over(same)
    # With a tie no replica is the last one: it would be claimed by its position in the table.
    tied = (pl.col("end_ns") == last_ns).sum().over(same)
    table = windows.join(waits, on=["pipeline", "step"], how="left", maintain_order="left").with_columns(
        lead_ns=last_ns - pl.col("end_ns"), is_last=(pl.col("end_ns") == last_ns) & (tied == 1)
    )
    # All replicas of one step use the same evidence: the two kinds of waits are not comparable.
    whole = pl.col("wait_ns").is_not_null().all().over(same)
    by_window = pl.col("lead_ns") * pl.col("ranks").cast(pl.Int64)
    table = table.with_columns(
        wait_ns=pl.when(whole).then("wait_ns").otherwise(by_window),
        evidence=pl.when(whole).then(pl.lit(EVIDENCE[0])).otherwise(pl.lit(EVIDENCE[1])),
    )
    columns = [pl.col(name).cast(dtype) for name, dtype in REPLICA_STEPS.schema.items()]
    return table.select(*columns, "start_ns").sort(REPLICA_STEPS.order)


def _reduction_waits(spans: pl.DataFrame, windows: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return pipeline, step and wait_ns of the pipelines with a recorded reduction that a replica joined."""
    reductions = spans.filter((pl.col("kind") == "grad_reduce") & pl.col("step").is_not_null())
    if reductions.is_empty():
        return windows.select("pipeline", "step").clear().with_columns(wait_ns=pl.lit(0, pl.Int64))
    groups = windows.select("pipeline", "group").unique()
    entered = (
        reductions.select("rank", "step", "start_ns", "end_ns")
        .sort("start_ns", maintain_order=True)
        .with_columns(turn=pl.int_range(pl.len()).over("rank", "step"))
        .join(pipelines, on="rank")
        .join(groups, on="pipeline")
        .join(_first_stages(spans), on="rank")
    )
    together = ["group", "stage", "step", "turn"]
    entered = entered.with_columns(
        # A reduction cannot wait longer than it took, even if the clocks disagree.
        window_start_ns="start_ns",
        window_end_ns=pl.min_horizontal(pl.col("start_ns").max().over(together), "end_ns"),
    ).filter(pl.col("pipeline").n_unique().over(together) >= FEWEST_REPLICAS)
    # Reductions of one rank may overlap each other and its backwards.
    waits = unite(entered.select("rank", start_ns="window_start_ns", end_ns="window_end_ns"))
    waits = waits.rename({"start_ns": "window_start_ns", "end_ns": "window_end_ns"})
    busy = unite_computing(spans)
    length_ns = pl.col("window_end_ns") - pl.col("window_start_ns")
    named = waits.with_columns(wait_ns=length_ns - covered_ns(waits, busy)).join(
        entered.select("rank", "pipeline", "step", "window_start_ns").unique(["rank", "window_start_ns"]),
        on=["rank", "window_start_ns"],
    )
    sums = named.group_by("pipeline", "step").agg(pl.col("wait_ns").sum())
    took_part = entered.select("pipeline", "step").unique().join(sums, on=["pipeline", "step"], how="left")
    return took_part.with_columns(pl.col("wait_ns").fill_null(0))


def _first_stages(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the smallest stage of every rank: ranks with the same stages reduce together."""
    actions = spans.lazy().filter(pl.col("kind").is_in(ACTION_KINDS))
    return actions.group_by("rank").agg(pl.min("stage")).collect()


class _Lateness:
    """How much later each pipeline ended each step than the others of its group, as a fraction of its window.

    A value is in the row of its pipeline and the column of its step; NaN where a pipeline has no such window.
    """

    def __init__(self, pipelines: pl.Series, steps: pl.Series) -> None:
        self._pipelines, self._steps = pipelines, steps
        self._late = np.full((len(pipelines), len(steps)), np.nan)

    @classmethod
    def of(cls, windows: Iterable[pl.DataFrame], groups: pl.DataFrame) -> Self:
        """Return what is known before any step is compared, given all of them in parts."""
        steps = united_rows(windows, ["step"])["step"].sort()
        return cls(groups["pipeline"].sort(), steps)

    def added(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add some steps, and return them."""
        for group in rows.partition_by("group", maintain_order=True):
            pipelines, steps = group["pipeline"].unique().sort(), group["step"].unique().sort()
            ends, lengths = (np.full((len(pipelines), len(steps)), np.nan) for _ in range(2))
            place = pipelines.search_sorted(group["pipeline"]), steps.search_sorted(group["step"])
            first_ns = group["start_ns"].min()
            ends[place] = (group["end_ns"] - first_ns).to_numpy()
            lengths[place] = (group["end_ns"] - group["start_ns"]).to_numpy()
            with np.errstate(invalid="ignore", divide="ignore"):
                late = (ends - medians_of_others(ends)) / lengths
            of_run = self._pipelines.search_sorted(pipelines), self._steps.search_sorted(steps)
            self._late[np.ix_(*(each.to_numpy() for each in of_run))] = late
        return rows

    def estimate(self, rank_error: tuple[float, float]) -> pl.DataFrame:
        """Return pipeline and p_value: how likely it ends as much later than its replicas if it were as fast."""
        plain = estimate_means(self._late)
        # The noise of windows, and that of the devices, which a few steps do not show.
        both = Estimates(plain.value, np.hypot(plain.error, rank_error[0]), plain.degrees, plain.count)
        return pl.DataFrame({"pipeline": self._pipelines, "p_value": both.p_above(0.0)})


def _sums(steps: pl.DataFrame) -> pl.DataFrame:
    """Return what is summed over REPLICA_STEPS, by pipeline; rows of `steps` may be sums already."""
    table = steps if "extra" in steps.columns else _summands(steps)
    replicas, *summed = (name for name in table.columns if name not in ("pipeline", "group"))
    sums = table.group_by("pipeline", "group").agg(pl.max(replicas), *(pl.sum(name) for name in summed))
    return sums.sort("pipeline")


def _summands(steps: pl.DataFrame) -> pl.DataFrame:
    """Return what each row of REPLICA_STEPS adds to the sums; `steps` are whole steps."""
    same = ["group", "step"]
    of_others = pl.col("wait_ns").sum().over(same) - pl.col("wait_ns")
    behind = pl.col("lead_ns").filter(~pl.col("is_last")).min().over(same).fill_null(0)
    return steps.select(
        "pipeline",
        "group",
        replicas=pl.len().over(same),
        steps=pl.lit(1, pl.Int64),
        last_count=pl.col("is_last").cast(pl.Int64),
        wait_ns="wait_ns",
        caused_wait_ns=of_others * pl.col("is_last"),
        extra=behind * pl.col("is_last"),
    )


def _totals(sums: pl.DataFrame, delays: pl.DataFrame, least_cost_ns: float) -> pl.DataFrame:
    """Return the table REPLICAS."""
    table = sums.with_columns(
        last_fraction=pl.col("last_count") / pl.col("steps"),
        extra_ns_per_step=pl.col("extra") / pl.col("steps"),
    ).join(delays, on="pipeline", how="left", maintain_order="left")
    claimed = pl.Series(rejections(table["p_value"].to_numpy(), FAMILY_RATE), dtype=pl.Boolean)
    table = table.with_columns(
        is_claimed=claimed & (pl.col("extra_ns_per_step") >= least_cost_ns) & (pl.col("last_count") > 0)
    )
    return table.select(pl.col(name).cast(dtype) for name, dtype in REPLICAS.schema.items())


def _clock_doubt(timeline: Timeline) -> list[Diagnostic]:
    """Return a warning if replicas are on clocks whose offset has an unknown error."""
    clocks = timeline.ranks["clock"].drop_nulls().unique()
    known = timeline.clocks.filter(
        pl.col("clock").is_in(clocks.implode()) & pl.col("error_lo_ns").is_not_null()
    )
    unknown = len(clocks) - known["clock"].n_unique()
    if len(clocks) < FEWEST_REPLICAS or not unknown:
        return []
    message = "clock offsets have an unknown error; which replica was last is as uncertain"
    return [Diagnostic("warning", message, count=unknown, code="clock.error_unknown")]
