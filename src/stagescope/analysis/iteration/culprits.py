"""Culprits and victims: which rank or link makes which rank idle, by cause.

This is the idle time of the iteration ledger (iteration/ledger.py), divided further. Scalasca has the same table for
wait states of MPI programs ("Identifying the root causes of wait states in large-scale parallel applications", Böhme et
al., ICPP 2010), as long-term delay costs. Inside the windows:

* what a cause adds to the step of a pipeline makes all its ranks idle, so its origins (idle/origins.py) are culprits of
  all of them;
* the work that a cause adds to a rank itself is not idle time of that rank: a slow rank has a negative part by itself;
* stages with less work than others wait for those with more, so stage imbalance is divided among the latter only.

Outside of them (outside_culprits.py) the culprit is

* of the data-parallel wait, inside the windows as well, the pipeline that ended last, and the rank in it that made it
  later than the others if one did at least half of that;
* of data loading, the rank that loads: the victim itself, or else the one of its pipeline, or of the run, that loads
  longest; of gradient reduction, the rank that reduces gradients after all replicas have joined it, likewise, and none
  if all ranks do for about as long;
* of the optimizer, as far as it takes longer than in the median over the ranks, the rank that optimizes longest,
  likewise;
* of other work, the rank itself, as long as it does some; else the rank that begins the next step of the pipeline;
* of what ranks did before the last collective between two steps, the rank that came last to it; the collectives
  themselves have no culprit;
* of unattributed time, the rank that begins the next step of the pipeline: once everything recorded is done, all wait
  for its first action. Without any record of what happens between steps, no one is named.

What has no culprit, such as the schedule bubble, has a row without one, so the parts sum to the idle time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.culprit_sums import PS_PER_NS, in_ps, sum_causes
from stagescope.model.large_tables import reduced
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.causes import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stagescope.analysis.iteration.culprit_sums import CausesOfSteps, CauseSums, Sums
    from stagescope.analysis.iteration.outside_culprits import OutsideCulprits

CauseType = pl.Enum([cause.name for cause in CAUSES])
CULPRIT = ("culprit_pipeline", "culprit_rank", "culprit_peer")
KEYS = ("cause", *CULPRIT, "victim_rank")

CULPRITS = Table(
    "culprits",
    "the idle time of one rank by one cause that comes from one rank or link",
    KEYS,
    (
        Column("cause", CauseType, "", "Name of the cause."),
        Column("culprit_pipeline", pl.Int32, "", "Pipeline of the culprit; null: no culprit.", nullable=True),
        Column(
            "culprit_rank",
            pl.Int32,
            "",
            "Rank that causes it, of a link the sender; null: the pipeline as a whole, or no culprit.",
            nullable=True,
        ),
        Column("culprit_peer", pl.Int32, "", "Receiver of the link; null: no link.", nullable=True),
        Column("victim_rank", pl.Int32, "", "Rank that is idle."),
        Column("idle_ns", pl.Float64, "ns", "Idle time per iteration; negative: idle time that it saves."),
    ),
)

DOMINANT = 0.5
"""A rank is the culprit of what several ranks contribute to if its part is at least this much."""

ROWS_AT_ONCE = 500_000
"""Rows of the table that are made together: it may have one for every rank and every pipeline."""

SHORTEST_NS = 0.5
"""Shorter parts are rounding errors of sums of integers."""

WAIT, UNEQUAL = "data_parallel_wait", "stage_imbalance"


def find_culprits(
    parts: Sequence[CausesOfSteps],
    members: pl.DataFrame,
    outside: OutsideCulprits,
    steps_per_iteration: int = 1,
) -> pl.DataFrame:
    """Return the table CULPRITS over the iterations of all parts, which have different steps.

    `members` are the ranks of each pipeline (pipeline and rank), `outside` is from find_outside_culprits for all
    iterations. The parts of a victim and cause sum to its column of ITERATIONS, as the mean over the iterations.
    """
    waits = [part.iterations.lazy() for part in parts]
    return pl.concat(name_culprits(sum_causes(parts, members), waits, outside, steps_per_iteration))


def name_culprits(
    causes: CauseSums,
    iterations: Sequence[pl.LazyFrame],
    outside: OutsideCulprits,
    steps_per_iteration: int = 1,
) -> Iterator[pl.DataFrame]:
    """Yield the table of find_culprits in pieces, given sums over its parts, and the table ITERATIONS of each part."""
    yield CULPRITS.empty()
    sums, steps, last = causes
    if sums is None or not steps:
        return
    run = _Run(sums, last, iterations, outside)
    for cause in CAUSES:
        for summed in _of_cause(run, cause.name):
            mean_ns = (pl.col("idle_ns") * steps_per_iteration / steps).round(3)
            rows = declared(summed.with_columns(mean_ns, cause=pl.lit(cause.name, CauseType)))
            yield rows.filter(pl.col("idle_ns").abs() >= SHORTEST_NS).sort(KEYS, nulls_last=True)


class _Run(NamedTuple):
    """What name_culprits is given."""

    sums: Sums
    last: pl.DataFrame
    iterations: Sequence[pl.LazyFrame]
    outside: OutsideCulprits

    def of_pipelines(self, first: int, last: int) -> _Run:
        """Return what has these pipelines as culprits."""
        own, culprits = (pl.col(name).is_between(first, last) for name in ("pipeline", "culprit_pipeline"))
        sums = self.sums._replace(origins=self.sums.origins.filter(own), own=self.sums.own.filter(own))
        return _Run(sums, self.last.filter(culprits), self.iterations, self.outside.only(culprits))


def _of_cause(run: _Run, cause: str) -> Iterator[pl.DataFrame]:
    """Yield the idle time of all victims by its culprits, for one cause, summed over all steps.

    Culprits are some pipelines after the others, and then none: null is last.
    """
    run = run._replace(outside=run.outside.only(pl.col("cause") == cause))
    nowhere = _in_idle_ps(run.outside.only(pl.col("culprit_pipeline").is_null()).rows())
    known = _per_victim([nowhere])
    for first, last in _divided_pipelines(run, cause):
        named = _in_idle_ps(_named(run.of_pipelines(first, last), cause))
        known = _per_victim([known, named])
        yield _per_culprit(named)
    yield _per_culprit(pl.concat([nowhere, _without_culprit(run.sums.causes, cause, known)]))


def _divided_pipelines(run: _Run, cause: str) -> Iterator[tuple[int, int]]:
    """Yield the first and the last pipeline of each piece of a table of culprits by one cause."""
    known = run.sums.causes["pipeline"].unique().sort()
    rows = run.outside.row_count() + run.sums.causes.height
    if cause == WAIT:
        rows += run.sums.causes.height * run.last["culprit_pipeline"].n_unique()
    size = max(1, known.len() * ROWS_AT_ONCE // max(rows, 1))
    for begin in range(0, known.len(), size):
        some = known[begin : begin + size]
        yield some[0], some[-1]


def _named(run: _Run, cause: str) -> pl.DataFrame:
    """Return the idle time of all victims by some culprits, for one cause, with several rows for some of them."""
    parts = [run.outside.rows()]
    parts.append(_unequal_stages(run.sums) if cause == UNEQUAL else _inside(run.sums, cause))
    if cause in run.sums.own.columns:
        parts.append(_by_themselves(run.sums.own, cause))
    if cause == WAIT and run.last.height:
        parts.append(_waits(run))
    names = (*KEYS[1:], "idle_ns")
    return pl.concat(
        part.select(pl.col(name).cast(CULPRITS.schema[name]) for name in names) for part in parts
    )


def _in_idle_ps(named: pl.DataFrame) -> pl.DataFrame:
    return named.select(*CULPRIT, "victim_rank", idle_ps=in_ps("idle_ns"))


def _per_victim(named: Sequence[pl.DataFrame]) -> pl.DataFrame:
    every = pl.concat([rows.select("victim_rank", "idle_ps") for rows in named])
    return every.group_by("victim_rank").agg(pl.sum("idle_ps"))


def _per_culprit(named: pl.DataFrame) -> pl.DataFrame:
    return named.group_by(*CULPRIT, "victim_rank").agg(idle_ns=pl.sum("idle_ps") / PS_PER_NS)


def _without_culprit(causes: pl.DataFrame, cause: str, known: pl.DataFrame) -> pl.DataFrame:
    """Return what culprits leave of a cause for every victim, given the sums of all causes, and what is known."""
    totals = causes.group_by(victim_rank="rank").agg(total_ns=pl.sum(f"{cause}_ns"))
    return totals.join(known, on="victim_rank", how="left").select(
        *(pl.lit(None, CULPRITS.schema[name]).alias(name) for name in CULPRIT),
        "victim_rank",
        idle_ps=pl.col("total_ns").cast(pl.Int128) * PS_PER_NS - pl.col("idle_ps").fill_null(0),
    )


def declared(part: pl.DataFrame) -> pl.DataFrame:
    """Return some culprits with the columns of the table."""
    return part.select(pl.col(name).cast(CULPRITS.schema[name]) for name in CULPRITS.names)


def _delaying_ranks(later: pl.DataFrame) -> pl.DataFrame:
    """Return the rank (culprit_rank) that does at least half of what makes a pipeline (culprit_pipeline) the last."""
    return (
        later.filter(pl.col("later_ps") > 0)
        .filter(pl.col("later_ps") >= DOMINANT * pl.col("later_ps").sum().over("pipeline"))
        .sort("later_ps", "rank", descending=[True, False])
        .unique("pipeline", keep="first")
        .select(culprit_pipeline="pipeline", culprit_rank="rank")
    )


def _inside(sums: Sums, cause: str) -> pl.DataFrame:
    """Return what origins of a cause other than stage imbalance add to the idle time of all ranks of their pipeline."""
    victims = sums.own.select("pipeline", victim_rank="rank")
    origins = sums.origins.filter(pl.col("cause") == cause).join(victims, on="pipeline")
    return origins.select(
        "victim_rank", idle_ns=pl.col("added_ps") / PS_PER_NS, **_culprit("pipeline", "rank", "peer")
    )


def _by_themselves(own: pl.DataFrame, cause: str) -> pl.DataFrame:
    """Return the own work of every rank with the rank as its culprit; only the surplus of stages with more work."""
    idle_ns = pl.col(cause).clip(upper_bound=0) if cause == UNEQUAL else pl.col(cause)
    return own.select(victim_rank="rank", idle_ns=idle_ns, **_culprit("pipeline", "rank"))


def _unequal_stages(sums: Sums) -> pl.DataFrame:
    """Return the stage imbalance of every rank, divided among the ranks with more work than the mean."""
    added = (
        sums.origins.filter(pl.col("cause") == UNEQUAL).group_by("pipeline", "rank").agg(pl.sum("added_ps"))
    )
    whole_ns = added.group_by("pipeline").agg(whole_ns=pl.sum("added_ps") / PS_PER_NS)
    shares = added.filter(pl.col("added_ps") > 0).with_columns(
        share=pl.col("added_ps") / pl.col("added_ps").sum().over("pipeline")
    )
    missing_ns = pl.col(UNEQUAL).clip(lower_bound=0)
    victims = sums.own.join(whole_ns, on="pipeline").select(
        "pipeline", victim_rank="rank", waits_ns=pl.col("whole_ns") + missing_ns
    )
    return victims.join(shares, on="pipeline").select(
        "victim_rank",
        idle_ns=pl.col("waits_ns") * pl.col("share"),
        **_culprit("pipeline", "rank"),
    )


def _culprit(pipeline: str, rank: str, peer: str | None = None) -> dict[str, pl.Expr]:
    """Return the columns of a culprit, given those that hold its parts."""
    return {
        "culprit_pipeline": pl.col(pipeline),
        "culprit_rank": pl.col(rank),
        "culprit_peer": pl.col(peer) if peer else pl.lit(None, pl.Int32),
    }


def _waits(run: _Run) -> pl.DataFrame:
    """Return the data-parallel wait of every rank, caused by the last pipeline, and the rank that delays that one."""
    waits = reduced((_waits_of(part, run.last) for part in run.iterations), _sum_of_waits)
    named = waits.join(_delaying_ranks(run.sums.later), on="culprit_pipeline", how="left")
    return named.with_columns(culprit_peer=pl.lit(None))


def _waits_of(iterations: pl.LazyFrame, last: pl.DataFrame) -> pl.DataFrame:
    """Return the data-parallel wait (idle_ns) of every rank (victim_rank) in the steps that some pipelines end."""
    some = iterations.filter(pl.col("step").is_in(last["step"].implode()))
    waits = some.select("step", victim_rank="rank", idle_ns=f"{WAIT}_ns")
    return waits.join(last.lazy(), on="step").drop("step").collect()


def _sum_of_waits(waits: pl.DataFrame) -> pl.DataFrame:
    return waits.group_by("culprit_pipeline", "victim_rank").agg(pl.sum("idle_ns"))
