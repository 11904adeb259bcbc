"""Culprits and victims: which rank or link makes which rank idle, by cause.

This is the idle time of the iteration ledger (iteration/ledger.py), divided further. Scalasca has the same table for
wait states of MPI programs ("Identifying the root causes of wait states in large-scale parallel applications", Böhme et
al., ICPP 2010), as long-term delay costs. Inside the windows:

* what a cause adds to the step of a pipeline makes all its ranks idle, so its origins (idle/origins.py) are culprits of
  all of them;
* the work that a cause adds to a rank itself is not idle time of that rank: a slow rank has a negative part by itself;
* stages with less work than others wait for those with more, so stage imbalance is divided among the latter only.

Outside of them the culprit is

* of the data-parallel wait, inside the windows as well, the pipeline that ended last, and the rank in it that made it
  later than the others if one did at least half of that;
* of data loading, the rank that loads: the victim itself, or else the one of its pipeline, or of the run, that loads
  longest; of gradient reduction, the rank that reduces gradients, likewise;
* of other work, the rank itself;
* of what ranks did before the last collective between two steps, the rank that came last to it; the collectives
  themselves have no culprit;
* of unattributed time, the rank that begins the next step of the pipeline: once everything recorded is done, all wait
  for its first action. Without any record of what happens between steps, no one is named.

What has no culprit, such as the schedule bubble, has a row without one, so the parts sum to the idle time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.iteration.activities import LOADING, REDUCTION, name_activities
from stagescope.analysis.iteration.outside_times import inside_windows, outside_windows
from stagescope.model.coverage import covered_ns, unite
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.causes import CAUSE_COLUMNS, CAUSES
from stagescope.vocabulary.kinds import ACTION_KINDS, TRANSFERS

if TYPE_CHECKING:
    from stagescope.analysis.idle.ledger import Ledger

CauseType = pl.Enum([cause.name for cause in CAUSES])
KEYS = ("cause", "culprit_pipeline", "culprit_rank", "culprit_peer", "victim_rank")

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

SHORTEST_NS = 0.5
"""Shorter parts are rounding errors of sums of integers."""

WAIT, UNEQUAL = "data_parallel_wait", "stage_imbalance"


def find_culprits(
    iterations: pl.DataFrame,
    ledger: Ledger,
    spans: pl.DataFrame,
    between: pl.DataFrame,
    steps_per_iteration: int = 1,
) -> pl.DataFrame:
    """Return the table CULPRITS over the iterations in `iterations`, the table ITERATIONS with a row per step.

    `ledger` is from build_ledger with origins, `spans` are those of the run, and `between` are the parts of
    BetweenSteps. The parts of a victim and cause sum to its
    column of `iterations`, as the mean over the iterations.
    """
    if iterations.is_empty():
        return CULPRITS.empty()
    steps = iterations["step"].unique()
    chosen = pl.col("step").is_in(steps.implode())
    origins, ranks = ledger.origins.filter(chosen), ledger.ranks.filter(chosen)
    own = _own_work(ledger.steps.filter(chosen), ranks)
    parts = [
        _inside(origins, ranks),
        _by_themselves(own),
        _unequal_stages(origins, own),
        _waits(iterations, last_ranks(iterations, origins)),
    ]
    del origins  # the largest table
    outside = find_outside_culprits(iterations, inside_windows(ranks), spans, between).drop("is_between")
    found = pl.concat([*map(_declared, parts), outside])
    every = pl.concat([found, _without_culprit(iterations, found)])
    # Rounded, because parallel sums of floating-point numbers depend on their order.
    summed = every.group_by(KEYS).agg((pl.sum("idle_ns") * steps_per_iteration / len(steps)).round(3))
    return summed.filter(pl.col("idle_ns").abs() >= SHORTEST_NS).sort(KEYS, nulls_last=True)


def find_outside_culprits(
    iterations: pl.DataFrame, inside: pl.DataFrame, spans: pl.DataFrame, between: pl.DataFrame
) -> pl.DataFrame:
    """Return rows of CULPRITS for time outside of the windows, summed over steps: of BEYOND, and unattributed.

    `iterations` and `inside`, from inside_windows, are of the same steps. The column `is_between` marks what was
    before the last collective between two steps.
    """
    if iterations.is_empty():
        return CULPRITS.empty().with_columns(is_between=pl.lit(value=False))
    met = _before_collectives(iterations, between)
    outside = _without_met(outside_windows(iterations, inside), met)
    itself = outside.select(victim_rank="rank", culprit_rank="rank")
    parts = [
        *(_by(outside, activity, _actors(iterations, spans, activity)) for activity in (REDUCTION, LOADING)),
        _by(outside, "other_work", itself),
        _by(outside, "unattributed", _first_ranks(iterations, spans)),
    ]
    found = pl.concat(map(_declared, parts)).with_columns(is_between=pl.lit(value=False))
    known = _declared(met).with_columns(is_between=pl.lit(value=True))
    every = pl.concat([found, known]).filter(pl.col("idle_ns") != 0)
    return every.sort(*KEYS, "is_between", nulls_last=True)


def _before_collectives(iterations: pl.DataFrame, between: pl.DataFrame) -> pl.DataFrame:
    """Return what all ranks waited for until the last collective between two steps, with who came last to it."""
    pipelines = iterations.select("rank", "pipeline").unique()
    ranks = iterations.select("step", victim_rank="rank")
    return (
        between.filter(pl.col("cause") != REDUCTION)
        .join(ranks, on="step")
        .group_by("cause", "victim_rank", culprit_rank="rank")
        .agg(idle_ns=pl.sum("ns"))
        .join(
            pipelines.rename({"pipeline": "culprit_pipeline"}),
            left_on="culprit_rank",
            right_on="rank",
            how="left",
        )
        .with_columns(culprit_peer=pl.lit(None))
    )


def _without_met(outside: pl.DataFrame, met: pl.DataFrame) -> pl.DataFrame:
    """Return the times outside of windows without those before collectives."""
    sums = met.group_by("victim_rank", "cause").agg(pl.sum("idle_ns"))
    for (cause,), part in sums.group_by("cause"):
        if cause in outside.columns:
            known = outside.select("rank").join(
                part, left_on="rank", right_on="victim_rank", how="left", maintain_order="left"
            )
            outside = outside.with_columns(
                (pl.col(str(cause)) - known["idle_ns"].fill_null(0)).alias(str(cause))
            )
    return outside


def _declared(part: pl.DataFrame) -> pl.DataFrame:
    return part.select(pl.col(name).cast(CULPRITS.schema[name]) for name in CULPRITS.names)


def last_ranks(iterations: pl.DataFrame, origins: pl.DataFrame) -> pl.DataFrame:
    """Return per step the pipeline that ended last, and the rank that makes it later than the others.

    Columns: step, culprit_pipeline, culprit_rank; the rank is null if none does at least half of it over all steps in
    which its pipeline is last. `origins` is the table ORIGINS. Ranks of different pipelines are compared by their order
    in the pipeline.
    """
    last = iterations.filter("is_last").select("step", culprit_pipeline="pipeline").unique("step")
    places = pl.col("rank").rank("dense").over("pipeline")
    known = iterations.select("pipeline", "rank").unique().with_columns(place=places)
    others = max(known["pipeline"].n_unique() - 1, 1)
    added = (
        origins.lazy()
        .group_by("step", "pipeline", "rank")
        .agg(pl.sum("added_ns"))
        .collect(engine="streaming")
        .join(known, on=["pipeline", "rank"])
    )
    mean_ns = (pl.col("added_ns").sum().over("step", "place") - pl.col("added_ns")) / others
    later = (
        added.with_columns(later_ns=pl.col("added_ns") - mean_ns)
        .join(last, left_on=["step", "pipeline"], right_on=["step", "culprit_pipeline"])
        .group_by("pipeline", "rank")
        .agg(pl.sum("later_ns"))
        .filter(pl.col("later_ns") > 0)
        .filter(pl.col("later_ns") >= DOMINANT * pl.col("later_ns").sum().over("pipeline"))
        .sort("later_ns", "rank", descending=[True, False])
        .unique("pipeline", keep="first")
        .select(culprit_pipeline="pipeline", culprit_rank="rank")
    )
    return last.join(later, on="culprit_pipeline", how="left")


def _inside(origins: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return what origins add to the idle time of every rank of their pipeline, without stage imbalance."""
    keys = ("pipeline", "cause", "rank", "peer")
    named = origins.lazy().filter(pl.col("cause") != UNEQUAL).group_by(keys)
    added = named.agg(idle_ns=pl.sum("added_ns")).collect(engine="streaming")
    victims = ranks.select("pipeline", victim_rank="rank").unique()
    return added.join(victims, on="pipeline").select(
        pl.col("cause").cast(pl.String), "victim_rank", "idle_ns", **_culprit("pipeline", "rank", "peer")
    )


def _own_work(steps: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return per rank (pipeline, rank) the work that causes add to it, as idle time that they take from it."""
    names = CAUSE_COLUMNS[1:-1]  # the schedule bubble and unattributed time add no work
    of_steps = steps.lazy().select("pipeline", "step", *names)
    both = ranks.lazy().join(of_steps, on=["pipeline", "step"], suffix="_step")
    parts = [(pl.col(name) - pl.col(f"{name}_step")).sum().alias(name.removesuffix("_ns")) for name in names]
    return both.group_by("pipeline", "rank").agg(parts).collect(engine="streaming")


def _by_themselves(own: pl.DataFrame) -> pl.DataFrame:
    """Return the own work of every rank with the rank as its culprit; only the surplus of stages with more work."""
    surplus = own.with_columns(pl.col(UNEQUAL).clip(upper_bound=0))
    parts = surplus.unpivot(index=["pipeline", "rank"], variable_name="cause", value_name="idle_ns")
    return parts.select("cause", "idle_ns", victim_rank="rank", **_culprit("pipeline", "rank"))


def _unequal_stages(origins: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
    """Return the stage imbalance of every rank, divided among the ranks with more work than the mean."""
    added = origins.filter(pl.col("cause") == UNEQUAL).group_by("pipeline", "rank").agg(pl.sum("added_ns"))
    whole_ns = added.group_by("pipeline").agg(whole_ns=pl.sum("added_ns"))
    shares = added.filter(pl.col("added_ns") > 0).with_columns(
        share=pl.col("added_ns") / pl.col("added_ns").sum().over("pipeline")
    )
    missing_ns = pl.col(UNEQUAL).clip(lower_bound=0)
    victims = own.join(whole_ns, on="pipeline").select(
        "pipeline", victim_rank="rank", waits_ns=pl.col("whole_ns") + missing_ns
    )
    return victims.join(shares, on="pipeline").select(
        "victim_rank",
        cause=pl.lit(UNEQUAL),
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


def _waits(iterations: pl.DataFrame, last: pl.DataFrame) -> pl.DataFrame:
    return (
        iterations.join(last, on="step")
        .group_by("culprit_pipeline", "culprit_rank", victim_rank="rank")
        .agg(idle_ns=pl.sum(f"{WAIT}_ns"))
        .with_columns(cause=pl.lit(WAIT), culprit_peer=pl.lit(None))
    )


def _actors(iterations: pl.DataFrame, spans: pl.DataFrame, activity: str) -> pl.DataFrame:
    """Return per rank (victim_rank) the rank whose activity it waits for; no rank for reductions as long on all."""
    named = name_activities(spans.filter(pl.col("kind").is_in(("other", "grad_reduce"))))
    active = unite(named.filter(pl.col("activity") == activity))
    bounds = iterations.select("step", "rank", "pipeline", window_start_ns="start_ns", window_end_ns="end_ns")
    enough = pl.col("active_ns") >= DOMINANT * pl.max("active_ns")
    lasting = _lasting(bounds, active)
    if activity == REDUCTION:
        if lasting.select(enough.all()).item():
            return lasting.clear().select(culprit_rank="rank", victim_rank="rank")
        # One inside of the window has its origin there.
        lasting = _lasting(_after_windows(bounds, spans), active)
    order = lasting.sort("active_ns", "rank", descending=[True, False])
    in_pipeline = (
        order.with_columns(enough=enough)
        .filter("enough")
        .unique("pipeline", keep="first")
        .select("pipeline", actor="rank")
    )
    return (
        lasting.with_columns(enough=enough)
        .join(in_pipeline, on="pipeline", how="left")
        .select(
            culprit_rank=pl.when("enough")
            .then("rank")
            .otherwise(pl.col("actor").fill_null(order["rank"].first())),
            victim_rank="rank",
        )
    )


def _lasting(bounds: pl.DataFrame, active: pl.DataFrame) -> pl.DataFrame:
    """Return how long every rank (pipeline, rank) was active within its bounds."""
    lasting = bounds.with_columns(active_ns=covered_ns(bounds, active))
    return lasting.group_by("pipeline", "rank").agg(pl.sum("active_ns"))


def _after_windows(bounds: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the bounds of iterations from the end of the windows on."""
    pipelines = bounds.select("pipeline", "rank").unique()
    ends = (
        spans.lazy()
        .filter(pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null())
        .group_by("step", "rank")
        .agg(pl.max("end_ns"))
        .join(pipelines.lazy(), on="rank")
        .group_by("step", "pipeline")
        .agg(ended_ns=pl.max("end_ns"))
        .collect()
    )
    joined = bounds.join(ends, on=["step", "pipeline"], how="left")
    start_ns = pl.min_horizontal(pl.coalesce("ended_ns", "window_start_ns"), "window_end_ns")
    return joined.with_columns(window_start_ns=start_ns).drop("ended_ns")


def _first_ranks(iterations: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return per rank (victim_rank) the one that begins the steps of its pipeline (culprit_rank).

    Empty if nothing was recorded between the steps: then it is unknown who was waited for.
    """
    pipelines = iterations.select("pipeline", "rank").unique()
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    if spans.filter(~is_action & ~pl.col("kind").is_in(TRANSFERS)).is_empty():
        return pipelines.clear().select(victim_rank="rank", culprit_rank="rank")
    first = (
        spans.lazy()
        .filter(is_action & pl.col("step").is_in(iterations["step"].unique().implode()))
        .group_by("step", "rank")
        .agg(pl.min("start_ns"))
        .join(pipelines.lazy(), on="rank")
        .sort("start_ns", "rank")
        .group_by("step", "pipeline", maintain_order=True)
        .agg(pl.first("rank"))
        .group_by("pipeline")
        .agg(culprit_rank=pl.col("rank").mode().min())
        .collect()
    )
    return pipelines.join(first, on="pipeline").select("culprit_rank", victim_rank="rank")


def _by(outside: pl.DataFrame, cause: str, culprits: pl.DataFrame) -> pl.DataFrame:
    """Return a cause outside of windows, given the culprit of every victim."""
    of_rank = outside.select("rank", "pipeline")
    return (
        outside.select(victim_rank="rank", idle_ns=cause)
        .join(culprits, on="victim_rank")
        .join(of_rank, left_on="culprit_rank", right_on="rank")
        .select(
            "victim_rank",
            "idle_ns",
            "culprit_rank",
            culprit_pipeline="pipeline",
            cause=pl.lit(cause),
            culprit_peer=pl.lit(None),
        )
    )


def _without_culprit(iterations: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Return what the parts that were found leave of every victim and cause."""
    names = {name: name.removesuffix("_ns") for name in CAUSE_COLUMNS}
    totals = (
        iterations.group_by(victim_rank="rank")
        .agg(pl.col(CAUSE_COLUMNS).sum())
        .rename(names)
        .unpivot(index="victim_rank", variable_name="cause", value_name="total_ns")
        .with_columns(pl.col("cause").cast(CauseType))
    )
    known = found.group_by("victim_rank", "cause").agg(pl.sum("idle_ns"))
    return totals.join(known, on=["victim_rank", "cause"], how="left").select(
        "cause",
        culprit_pipeline=pl.lit(None, pl.Int32),
        culprit_rank=pl.lit(None, pl.Int32),
        culprit_peer=pl.lit(None, pl.Int32),
        victim_rank="victim_rank",
        idle_ns=pl.col("total_ns") - pl.col("idle_ns").fill_null(0),
    )
