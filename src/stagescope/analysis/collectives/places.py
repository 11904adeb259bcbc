"""Where a late rank lost its time: what it did before a meeting, or between what nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.collectives.meetings import list_waits
from stagescope.analysis.iteration.activities import name_activities
from stagescope.model.collectives import SEPARATOR
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE, GARBAGE_COLLECTION, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Sequence

PLACES = {
    "rank": pl.Int32, "operation": pl.String, "group": pl.String, "activity": pl.String, "cause": pl.String,
    "after": pl.String, "before": pl.String,
}  # fmt: skip
WINDOWS = {"rank": pl.Int32, "since_ns": pl.Int64, "arrived_ns": pl.Int64}
ACTION = "last action"


class UsualMeeting(NamedTuple):
    """A meeting that shows where a rank is late: the collective, when its own time began, and when it issued it."""

    rank: int
    operation: str
    group: str
    since_ns: int
    arrived_ns: int


def usual_meetings(late: pl.DataFrame, shown: pl.Series) -> list[UsualMeeting]:
    """Return the usual meeting of each rank.

    `late` are rows of LATENESS, all of these ranks with lost time. It is the meeting with the median loss, among those
    of the collective for which the rank lost most, in the steps `shown`, of which there are spans, or else in any.
    """
    kind = ["rank", "operation", "group"]
    sums = late.group_by(kind, maintain_order=True).agg(pl.sum("lost_ns"))
    names = pl.col("operation", "group").cast(pl.String)
    most = sums.sort("rank", "lost_ns", names).unique("rank", keep="last")
    same = late.join(most.select(kind), on=kind, how="semi")
    is_shown = pl.col("step").is_in(shown.implode())
    known = same.filter(is_shown | ~is_shown.any().over("rank"))
    median = pl.exclude("rank").get((pl.len() - 1) // 2)
    usual = known.sort("rank", "lost_ns", "arrived_ns").group_by("rank", maintain_order=True).agg(median)
    return [UsualMeeting(*row) for row in usual.select(UsualMeeting._fields).iter_rows()]


def find_places(usual: Sequence[UsualMeeting], spans: pl.DataFrame) -> pl.DataFrame:
    """Return the place of the rank of each of `usual`, from usual_meetings: the collective, and what it did before.

    Columns: rank, operation, group, activity (null: nothing was recorded), cause, after, before.
    """
    windows = pl.DataFrame(
        [(each.rank, each.since_ns, each.arrived_ns) for each in usual], schema=WINDOWS, orient="row"
    )
    is_near = (pl.col("start_ns") < pl.col("arrived_ns")) | (pl.col("end_ns") == pl.col("since_ns"))
    near = (
        spans.lazy()
        .select("rank", "kind", "lane", "name", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
        .join(windows.lazy(), on="rank", maintain_order="left")
        .filter(is_near & (pl.col("end_ns") >= pl.col("since_ns")))
        .collect()
    )
    of_rank = near.drop("since_ns", "arrived_ns").partition_by("rank", as_dict=True, maintain_order=True)
    rows = [
        {"rank": each.rank, "operation": each.operation, "group": each.group}
        | _stretch(each, of_rank.get((each.rank,), spans.clear()))
        for each in usual
    ]
    return pl.DataFrame(rows, schema=PLACES, orient="row")


def _stretch(meeting: UsualMeeting, spans: pl.DataFrame) -> dict[str, object]:
    """Return the longest thing that a rank did between two moments: activity, and what came before and after it.

    `spans` are those of the rank in that time, and those that ended when it began.
    """
    since_ns, until_ns = meeting.since_ns, meeting.arrived_ns
    own = spans.filter(pl.col("end_ns") > since_ns, pl.col("start_ns") < until_ns)
    is_activity = ~pl.col("kind").is_in([*TRANSFERS, COLLECTIVE, "grad_reduce"])
    chosen = own.filter(is_activity)
    done = chosen.select(
        pl.max_horizontal("start_ns", pl.lit(since_ns)).alias("start_ns"),
        pl.min_horizontal("end_ns", pl.lit(until_ns)).alias("end_ns"),
        label=_label(),
    )
    waits = list_waits(own).select(
        pl.max_horizontal("start_ns", pl.lit(since_ns)).alias("start_ns"),
        pl.min_horizontal("end_ns", pl.lit(until_ns)).alias("end_ns"),
        label=pl.lit(None, pl.String),
    )
    before = {"start_ns": since_ns, "end_ns": since_ns, "label": _before(spans, since_ns)}
    after = {"start_ns": until_ns, "end_ns": until_ns, "label": f"the {meeting.operation}"}
    ends = pl.DataFrame([before, after], schema=done.schema)
    landmarks = done.with_columns(label=pl.when(~_is_anywhere()).then("label"))
    gap = _longest_gap(pl.concat([ends, landmarks, waits]).sort("start_ns", "end_ns"))
    sums = (
        done.with_columns(name_activities(chosen)["activity"])
        .group_by("label", "activity")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("ns", "label")
    )
    if sums.height and sums["ns"][-1] >= gap["gap_ns"]:
        most = sums.row(-1, named=True)
        named = {"activity": most["label"], "cause": most["activity"]}
        return {**named, "after": before["label"], "before": after["label"]}
    return {"activity": None, "cause": "unattributed", "after": gap["label"], "before": gap["next"]}


def _longest_gap(known: pl.DataFrame) -> dict[str, object]:
    """Return gap_ns of the longest gap between intervals, and the labels before (label) and after it (next).

    Waits for other ranks and garbage collections have no label: what was before or after them is named instead.
    """
    gaps = known.with_columns(
        pl.col("label").forward_fill(),
        next=pl.col("label").backward_fill().shift(-1),
        gap_ns=(pl.col("start_ns").shift(-1) - pl.col("end_ns").cum_max()).fill_null(0),
    )
    return gaps.row(gaps["gap_ns"].arg_max() or 0, named=True)


def _is_anywhere() -> pl.Expr:
    """Return whether a span can occur anywhere in a program, so that it identifies no place."""
    return pl.col("label").str.starts_with(GARBAGE_COLLECTION)


def _label() -> pl.Expr:
    """Return what a span is called in a sentence."""
    kind = pl.col("kind").cast(pl.String)
    is_action = kind.is_in(ACTION_KINDS)
    plain = kind.str.replace_all("_", " ", literal=True)
    return (
        pl.when(kind == "other")
        .then(pl.coalesce("name", pl.lit("other work")))
        .when(is_action)
        .then(pl.lit("an evaluation"))
        .when(kind == "optimizer")
        .then(pl.lit("the optimizer step"))
        .otherwise(plain)
    )


def _before(spans: pl.DataFrame, moment_ns: int) -> str:
    """Return what ended at a moment, of the spans of a rank: a collective, or its last action of a kind."""
    ended = spans.filter(pl.col("end_ns") == moment_ns)
    actions = ended.filter(pl.col("kind").is_in(ACTION_KINDS))
    if actions.height:
        return f"its last {actions['kind'][0]}".replace("_", " ")
    named = ended.filter(pl.col("name").str.contains(SEPARATOR, literal=True))
    return f"the {named['name'][0].split(SEPARATOR)[0]}" if named.height else ACTION
