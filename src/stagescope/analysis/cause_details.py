"""What a cause of lost time comes from, in a few words: the details in parentheses in the verdict's sentences.

A rank or a link is named if most of the cause comes from it; otherwise the cause has no detail, or is on all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stagescope.analysis.finding_sentences import (
    action_text,
    changing_rank_text,
    costliest_outlier,
    instead_text,
    late_rank_text,
    several_actions_text,
)
from stagescope.analysis.other_work import name_of_other_work
from stagescope.analysis.several_ranks import several_changing, several_slow
from stagescope.analysis.slow_replicas import find_slow_replicas, slow_ranks
from stagescope.model.large_tables import reduced
from stagescope.model.lazy import parts_of
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.number_ranges import compact_ranges
from stagescope.vocabulary.ratios import comparative_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stagescope.analysis.explanation import Explanation

    Detail = Callable[[Explanation, "Collection[int]"], "str | None"]

DOMINANT = 0.5
"""What at least this part of a cause comes from is named, if it is also twice as large as the next one."""

DOMINANT_RATIO = 2.0
COLLECTIVES = "collectives between steps"
NO_TRANSFERS = "exposed_communication_ns"
"""Among the unrecorded columns where no transfer was recorded: then transfers are in what precedes the actions."""

LEAST_SPREAD = 0.01
EVERYONE = "all ranks"
MOST_LISTED = 3
RARE_RATIO = 4.0
"""Steps with pauses are named if the pauses of the others are this many times as short in the mean."""

DIRECTIONS = 2
"""Links between two ranks: no others are there to compare them with if a pipeline has no more."""

EVEN_RATIO = 3.0
"""If no link has this many times the median of all links, the cause is on all of them."""


def cause_detail(name: str, explanation: Explanation, pipelines: Collection[int]) -> str | None:
    """Return what a cause of some pipelines comes from, None if nothing is known.

    `name` is a cause other than stage_imbalance and data_parallel_wait, which are about the run as a whole.
    """
    detail = DETAILS.get(name)
    return detail(explanation, pipelines) if detail else None


def _origins(explanation: Explanation, pipelines: Collection[int], cause: str) -> pl.DataFrame:
    origins = explanation.ledger.summed_origins
    return origins.filter(pl.col("cause").cast(pl.String) == cause, pl.col("pipeline").is_in(list(pipelines)))


def _largest(origins: pl.DataFrame, keys: list[str]) -> dict[str, Any] | None:
    """Return the keys of what most of the time comes from, None if nothing dominates."""
    added = origins.group_by(keys).agg(pl.sum("added_ns")).filter(pl.col("added_ns") > 0)
    if added.is_empty():
        return None
    first, *others = added.sort("added_ns", *keys, descending=[True, *[False] * len(keys)]).to_dicts()
    rest = [each["added_ns"] for each in others]
    is_most = first["added_ns"] >= DOMINANT * (first["added_ns"] + sum(rest))
    return first if is_most and first["added_ns"] >= DOMINANT_RATIO * max(rest, default=0.0) else None


def _straggler(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    origins = _origins(explanation, pipelines, "straggler")
    by_pipeline = _largest(origins, ["pipeline"])
    if by_pipeline and any(
        each.pipeline == by_pipeline["pipeline"] for each in find_slow_replicas(explanation)
    ):
        return f"all ranks of the pipeline of rank {by_pipeline['pipeline']}"
    several = several_changing(explanation, origins) or several_slow(explanation, origins)
    slowest = _largest(origins, ["rank"])
    if several is not None or slowest is None:
        return several
    changing = explanation.stragglers.changing.filter("has_peers", rank=slowest["rank"])
    if changing.height:
        return changing_rank_text(changing.row(0, named=True))
    claimed = slow_ranks(explanation).filter(rank=slowest["rank"])["excess_fraction"]
    if claimed.is_empty():
        return f"mostly rank {slowest['rank']}"
    return f"rank {slowest['rank']} is {comparative_text('slower', 1 + claimed[0], decimals=1)}"


def _links(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    origins = _origins(explanation, pipelines, "exposed_communication")
    inside = _collectives_inside(explanation, origins)
    if inside is not None:
        return inside
    largest = _largest(origins, ["rank", "peer"])
    if largest is not None:
        peer = largest["peer"]
        link = f"link from rank {largest['rank']} to rank {peer}"
        return link if peer is not None else f"sends of rank {largest['rank']}"
    # The delays of messages leave open which direction of a link between two machines is the slow one.
    ends = [function("rank", "peer") for function in (pl.min_horizontal, pl.max_horizontal)]
    linked = origins.drop_nulls("peer").with_columns(first=ends[0], second=ends[1])
    pair = _largest(linked, ["first", "second"])
    total_ns = float(origins["added_ns"].clip(0).sum())
    added = origins.group_by("rank", "peer").agg(pl.sum("added_ns"))["added_ns"]
    if pair is not None and pair["added_ns"] >= DOMINANT * total_ns and len(added) > DIRECTIONS:
        return f"links between rank {pair['first']} and rank {pair['second']}"
    if added.is_empty():
        return None
    return "all links" if added.max() < EVEN_RATIO * added.median() else "several links"  # type: ignore[operator]  # numbers


def _collectives_inside(explanation: Explanation, origins: pl.DataFrame) -> str | None:
    """Return the stage that waits for data-parallel collectives inside of its actions, if that is most of the time."""
    of_ranks = origins.filter(pl.col("peer").is_null(), pl.col("rank").is_in(explanation.waits_inside))
    if of_ranks["added_ns"].sum() < DOMINANT * float(origins["added_ns"].sum()) or of_ranks.is_empty():
        return None
    stage = _largest(of_ranks, ["stage"])
    return "data-parallel collectives inside of actions" + (f" of stage {stage['stage']}" if stage else "")


def _sender(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    largest = _largest(_origins(explanation, pipelines, "blocked_on_send"), ["rank"])
    if largest is None:
        return None
    stages = _stages(explanation, [largest["rank"]])
    if not stages:  # nothing else was recorded of that rank
        return f"until rank {largest['rank']} receives"
    of_stages = " and ".join(map(str, stages))
    return f"until rank {largest['rank']} with stage{'s' * (len(stages) > 1)} {of_stages} receives"


def _other_work(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    added = _with_outside(explanation, pipelines, "other_work")
    late = _late(explanation, added, "other_work")
    who = _rank_text(explanation, added) if late is None else None
    if who is None:
        return late
    largest = _largest(added, ["rank"])
    ranks = [largest["rank"]] if largest and largest["rank"] is not None else None
    if largest is None and (of_stages := _dominant_stages(explanation, added)):
        ranks = of_stages[1]
    what = name_of_other_work(explanation.other_work, ranks=ranks, is_collective=who == COLLECTIVES)
    return f"{who}: {what}" if what else who


def _loading(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    added = _with_outside(explanation, pipelines, "data_loading")
    return _late(explanation, added, "data_loading") or _rank_text(explanation, added)


def _optimizer(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    added = _with_outside(explanation, pipelines, "optimizer")
    late = _late(explanation, added, "optimizer")
    if late is not None:
        return late
    # Optimizer steps between the windows have no culprit.
    is_most = float(added["added_ns"].sum()) >= DOMINANT * _sum(explanation, pipelines, "optimizer_ns") > 0
    who = _rank_text(explanation, added) if is_most else EVERYONE
    return ", ".join(
        filter(None, [who if who != EVERYONE else None, _duration("optimizer")(explanation, pipelines)])
    )


def _sum(explanation: Explanation, pipelines: Collection[int], column: str) -> int:
    """Return the sum of a column of the iterations of some pipelines."""
    own = pl.col("pipeline").is_in(list(pipelines))
    return sum(int(rows.filter(own)[column].sum()) for rows in parts_of(explanation, "iterations"))


def _late(explanation: Explanation, added: pl.DataFrame, cause: str) -> str | None:
    """Return the claimed late rank that causes most of what is `added` by a cause, and where; None without one."""
    largest = _largest(added, ["rank"])
    late = explanation.late_ranks.filter("is_claimed")
    if largest is None or largest["rank"] is None or late.is_empty():
        return None
    named = late.filter(rank=largest["rank"]).filter(pl.col("cause") == cause)
    return late_rank_text(named.row(0, named=True)) if named.height else None


def _reduction(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    """Return the ranks that reduce gradients longer than the others, and how long the reduction takes."""
    # A rank of several stages reduces the gradients of each at another time.
    of_stages = explanation.stage_costs.select("rank", only="stage").unique().unique("rank", keep="none")
    added = _with_outside(explanation, pipelines, "gradient_reduction").join(of_stages, on="rank", how="left")
    added = added.with_columns(stage=pl.coalesce("stage", "only"))
    by_stage = None if _largest(added, ["rank"]) else _largest(added.drop_nulls("stage"), ["stage"])
    who = f"ranks of stage {by_stage['stage']}" if by_stage else _rank_text(explanation, added)
    lasting = _duration("gradient_reduction")(explanation, pipelines)
    return ", ".join(filter(None, [who if who != EVERYONE else None, lasting])) or None


def _rank_text(explanation: Explanation, added: pl.DataFrame) -> str | None:
    """Return the rank or stage that most of the time comes from, or all ranks."""
    largest = _largest(added, ["rank"])
    if largest is not None:
        return COLLECTIVES if largest["rank"] is None else f"rank {largest['rank']}"
    added = added.drop_nulls("rank")
    of_stages = _dominant_stages(explanation, added)
    if of_stages is not None:
        text = of_stages[0]
        return f"ranks of stage{'s' * (' ' in text)} {text}"
    ranks = added.filter(pl.col("added_ns") > 0)["rank"].unique()
    return EVERYONE if len(ranks) == explanation.ledger.members["rank"].n_unique() else None


def _dominant_stages(explanation: Explanation, added: pl.DataFrame) -> tuple[str, list[int]] | None:
    """Return the stages whose ranks most of the time comes from, and these ranks; None without such stages."""
    stages = (
        explanation.stage_costs.select("rank", "stage")
        .unique()
        .group_by("rank")
        .agg(stages=pl.col("stage").sort().cast(pl.String).str.join(" and "))
    )
    largest = _largest(added.drop_nulls("rank").join(stages, on="rank"), ["stages"])
    if largest is None:
        return None
    return largest["stages"], stages.filter(stages=largest["stages"])["rank"].to_list()


def _nothing_recorded(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    """Return what the time precedes of which nothing was recorded: actions of a rank, or the next step."""
    late = _late(explanation, _with_outside(explanation, pipelines, "unattributed"), "unattributed")
    if late is not None:
        return late
    place, hint = unrecorded_place(explanation, pipelines)
    return ": ".join(filter(None, [f"nothing recorded {place}", hint])) if place else None


def unrecorded_place(explanation: Explanation, pipelines: Collection[int]) -> tuple[str, str]:
    """Return before what most of the time is of which nothing was recorded, and what it may be.

    Both are empty if it is in several places. Loading of data is no explanation where it was recorded.
    """
    added = _with_outside(explanation, pipelines, "unattributed")
    by_place = (
        added.group_by("kind", "is_between").agg(pl.sum("added_ns")).sort("added_ns", "kind", descending=True)
    )
    # Most of the whole, not of what has an origin: the rest may have any reason.
    if by_place["added_ns"].sum() <= 0 or by_place["added_ns"][0] < DOMINANT * _sum(
        explanation, pipelines, "unattributed_ns"
    ):
        return "", ""
    kind, is_between = by_place.select("kind", "is_between").row(0)
    if is_between:
        return "before a collective between steps", ""
    place = added.filter(pl.col("kind").eq_missing(kind), ~pl.col("is_between"))
    largest = _largest(place, ["rank"])
    ranks = [largest["rank"]] if largest else place.filter(pl.col("added_ns") > 0)["rank"].unique().to_list()
    stages = _stages(explanation, ranks)
    if largest is None and len(stages) != 1:
        return "", ""
    who = f"rank {largest['rank']}" if largest else f"stage {stages[0]}"
    where = (
        f"before {kind.replace('_', ' ')}s of {who}"
        if kind
        else f"before the first forward of {who} {_in_steps(explanation, pipelines)}"
    )
    # Only a first stage reads data. Where others load labels, their forwards wait for activations anyway.
    may_load = 0 in stages and kind in (None, "forward") and "data_loading_ns" in explanation.unrecorded
    return where, "often data loading" if may_load else ""


def _in_steps(explanation: Explanation, pipelines: Collection[int]) -> str:
    """Return which steps begin after a pause: each, unless some have most of it and the others little."""
    chosen = pl.col("pipeline").is_in(list(pipelines))
    parts = (rows.filter(chosen).select("begins", "pause_ns") for rows in parts_of(explanation, "pauses"))
    pauses = reduced(parts, lambda rows: rows.group_by("begins").agg(pl.sum("pause_ns")))
    is_long = pl.col("pause_ns") >= DOMINANT * pl.max("pause_ns")
    long, short = pauses.filter(is_long)["pause_ns"], pauses.filter(~is_long)["pause_ns"]
    steps = pauses.filter(is_long)["begins"].to_list()
    every = sum(rows["step"].n_unique() for rows in parts_of(explanation, "iterations"))
    is_some = len(short) and int(long.sum()) > DOMINANT * int(pauses["pause_ns"].sum())
    is_only = len(pauses) == 1 and every > 1
    if not is_only and not (is_some and _mean(long) > RARE_RATIO * _mean(short)):
        return "in each step"
    listed = compact_ranges(steps, None).split(", ")
    if len(steps) == 1:
        return f"in step {steps[0]}"
    if len(listed) > MOST_LISTED:
        return f"in {len(steps)} of {every} steps"
    first = ", ".join(listed[:-1])
    return f"in steps {first} and {listed[-1]}" if first else f"in steps {listed[-1]}"


def _mean(values: pl.Series) -> float:
    return float(values.sum()) / len(values)


def _with_outside(explanation: Explanation, pipelines: Collection[int], cause: str) -> pl.DataFrame:
    """Return where a cause comes from (rank, kind, stage, is_between, added_ns), summed over victims.

    Outside of windows, kind and stage are null, and `is_between` marks what was before the last collective between
    two steps.
    """
    origins = _origins(explanation, pipelines, cause)
    sizes = explanation.ledger.members.group_by("pipeline").agg(victims=pl.col("rank").n_unique())
    inside = origins.join(sizes, on="pipeline").select(
        "rank",
        "kind",
        "stage",
        is_between=pl.lit(value=False),
        added_ns=pl.col("added_ns") * pl.col("victims"),
    )
    is_own = pl.col("culprit_pipeline").is_in(list(pipelines)) | pl.col("culprit_rank").is_null()
    beyond = explanation.outside_culprits.per_culprit((pl.col("cause").cast(pl.String) == cause) & is_own)
    unknown = {name: pl.lit(None, inside.schema[name]) for name in ("kind", "stage")}
    named = beyond.select("is_between", rank="culprit_rank", **unknown, added_ns="idle_ns")
    return pl.concat([inside, named.select(inside.columns)])


def _stages(explanation: Explanation, ranks: Collection[int]) -> list[int]:
    costs = explanation.stage_costs.filter(pl.col("rank").is_in(list(ranks)))
    stages: list[int] = costs["stage"].unique().sort().to_list()
    return stages


def _outliers(explanation: Explanation, pipelines: Collection[int]) -> str | None:
    """Return the outlier actions if they are most of the jitter."""
    is_chosen, pattern = pl.col("pipeline").is_in(list(pipelines)), explanation.outlier_pattern
    outliers = explanation.outliers.filter(is_chosen)
    parts = parts_of(explanation.ledger, "steps")
    jitter_ns = sum(int(rows.filter(is_chosen)["jitter_ns"].sum()) for rows in parts)
    cost_ns = int(outliers["cost_ns"].sum())
    if outliers.is_empty() or cost_ns < DOMINANT * jitter_ns:
        return None
    longest = costliest_outlier(outliers).row(0, named=True)
    # In the order of the ledger, jitter can be less than its outliers cost, and even negative.
    if (longest["cost_ns"] or 0) >= DOMINANT * max(jitter_ns, cost_ns):
        return f"{action_text(longest)} took {instead_text(longest)}"
    if pattern.text:
        return f"{several_actions_text(pattern.rows)}, {pattern.text}"
    return several_actions_text(outliers)


def _launch(explanation: Explanation, _: Collection[int]) -> str | None:
    launch_ns = explanation.ledger.delays.launch_overhead_ns
    if not len(launch_ns):
        return None
    text = f"{duration_text(round(float(np.mean(launch_ns))))} per action"
    return f"{text}, or transfers: none was recorded" if NO_TRANSFERS in explanation.unrecorded else text


def _lengths(explanation: Explanation, _: Collection[int]) -> str | None:
    lengths = explanation.ledger.classes.length_of_action
    spread = float(np.std(lengths)) if len(lengths) else 0.0
    note = f", {explanation.lengths_note}" if explanation.lengths_note else ""
    return f"lengths of micro-batches vary by {100 * spread:.0f} %{note}" if spread >= LEAST_SPREAD else None


def _duration(cause: str) -> Detail:
    def detail(explanation: Explanation, _: Collection[int]) -> str | None:
        lost = explanation.lost_time
        return duration_text(lost.causes_ns[f"{cause}_ns"] // lost.rows) if lost else None

    return detail


QUIET = frozenset(
    {"exposed_communication", "launch_overhead", "gradient_reduction", "optimizer", "unattributed"}
)
"""Causes that every run has: a sentence gives their details only where they are more than a point."""

DETAILS: dict[str, Detail] = {
    "straggler": _straggler,
    "data_imbalance": _lengths,
    "jitter": _outliers,
    "exposed_communication": _links,
    "blocked_on_send": _sender,
    "launch_overhead": _launch,
    "data_loading": _loading,
    "other_work": _other_work,
    "gradient_reduction": _reduction,
    "optimizer": _optimizer,
    "unattributed": _nothing_recorded,
}
