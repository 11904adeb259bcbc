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

MET = {
    "rank": pl.Int32, "operation": pl.String, "group": pl.String, "since_ns": pl.Int64, "arrived_ns": pl.Int64
}  # fmt: skip
"""Columns with the fields of UsualMeeting."""
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

    Columns: rank, operation, group, activity (null: nothing was recorded), cause, after, before. What the rank did is
    the longest activity before the meeting, or the longest time between what was recorded if that is longer.
    """
    met = pl.DataFrame(usual, schema=MET, orient="row").with_columns(
        label=pl.format("the {}", "operation"), until_ns="arrived_ns"
    )
    near = _spans_of(met, spans)
    known = met.join(_labels_before(near), on="rank", how="left", maintain_order="left").with_columns(
        pl.col("before").fill_null(ACTION)
    )
    own = near.filter(pl.col("end_ns") > pl.col("since_ns"), pl.col("start_ns") < pl.col("until_ns"))
    done = _done(own)
    most = done.group_by("rank", "label", "activity").agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    most = most.sort("rank", "ns", "label").unique("rank", keep="last")
    is_named = (pl.col("ns") >= pl.col("gap_ns")).fill_null(value=False)
    return (
        known.join(_longest_gaps(known, done, own), on="rank")
        .join(
            most.select("rank", "ns", "activity", did="label"), on="rank", how="left", maintain_order="left"
        )
        .select(
            "rank",
            "operation",
            "group",
            activity=pl.when(is_named).then("did"),
            cause=pl.when(is_named).then("activity").otherwise(pl.lit("unattributed")),
            after=pl.when(is_named).then("before").otherwise("after_gap"),
            before=pl.when(is_named).then("label").otherwise("before_gap"),
        )
    )


def _spans_of(met: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of ranks between the moments since_ns and until_ns, and those that ended at the first one."""
    is_near = (pl.col("start_ns") < pl.col("until_ns")) | (pl.col("end_ns") == pl.col("since_ns"))
    return (
        spans.lazy()
        .select("rank", "kind", "lane", "name", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
        .join(met.lazy().select("rank", "since_ns", "until_ns"), on="rank", maintain_order="left")
        .filter(is_near & (pl.col("end_ns") >= pl.col("since_ns")))
        .collect()
    )


def _done(own: pl.DataFrame) -> pl.DataFrame:
    """Return what ranks did between two moments: rank, start_ns, end_ns, label and activity."""
    chosen = own.filter(~pl.col("kind").is_in([*TRANSFERS, COLLECTIVE, "grad_reduce"]))
    return chosen.select(*_within(), label=_label()).with_columns(name_activities(chosen)["activity"])


def _within() -> tuple[str, pl.Expr, pl.Expr]:
    """Return rank, start_ns and end_ns of what is cut off at two moments."""
    return (
        "rank",
        pl.max_horizontal("start_ns", "since_ns"),
        pl.min_horizontal("end_ns", "until_ns").alias("end_ns"),
    )


def _longest_gaps(met: pl.DataFrame, done: pl.DataFrame, own: pl.DataFrame) -> pl.DataFrame:
    """Return gap_ns of the longest gap of each rank, and what came before (after_gap) and after it (before_gap).

    Waits for other ranks and garbage collections have no label: what was before or after them is named instead.
    """
    no_label = pl.lit(None, pl.String)
    waits = list_waits(own).join(met.select("rank", "since_ns", "until_ns"), on="rank", maintain_order="left")
    landmarks = [
        met.select("rank", start_ns="since_ns", end_ns="since_ns", label="before"),
        met.select("rank", start_ns="until_ns", end_ns="until_ns", label="label"),
        done.select("rank", "start_ns", "end_ns", label=pl.when(~_is_anywhere()).then("label")),
        waits.select(*_within(), label=no_label),
    ]
    until_next_ns = pl.col("start_ns").shift(-1) - pl.col("end_ns").cum_max()
    gaps = (
        pl.concat(landmarks)
        .sort("rank", "start_ns", "end_ns", maintain_order=True)
        .select(
            "rank",
            after_gap=pl.col("label").forward_fill().over("rank"),
            before_gap=pl.col("label").backward_fill().shift(-1).over("rank"),
            gap_ns=until_next_ns.fill_null(0).over("rank"),
        )
    )
    longest = pl.exclude("rank").get(pl.col("gap_ns").arg_max())
    return gaps.group_by("rank", maintain_order=True).agg(longest)


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


def _labels_before(near: pl.DataFrame) -> pl.DataFrame:
    """Return rank and what ended at since_ns (before): its last action of a kind, or else a collective."""
    is_action, is_named = (
        pl.col("kind").is_in(ACTION_KINDS),
        pl.col("name").str.contains(SEPARATOR, literal=True),
    )
    ended = near.filter(pl.col("end_ns") == pl.col("since_ns")).group_by("rank")
    firsts = ended.agg(
        pl.col("kind").filter(is_action).first().cast(pl.String),
        pl.col("name").filter(is_named.fill_null(value=False)).first(),
    )
    action = pl.format("its last {}", pl.col("kind").str.replace_all("_", " ", literal=True))
    collective = pl.format("the {}", pl.col("name").str.splitn(SEPARATOR, 2).struct.field("field_0"))
    return firsts.select("rank", before=pl.coalesce(action, collective))
