"""Where a late rank lost its time: what it did before a meeting, or between what nothing was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.collectives.meetings import list_waits
from stagescope.analysis.iteration.activities import name_activities
from stagescope.model.collectives import SEPARATOR
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE, GARBAGE_COLLECTION, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PLACES = {
    "rank": pl.Int32, "operation": pl.String, "group": pl.String, "activity": pl.String, "cause": pl.String,
    "after": pl.String, "before": pl.String,
}  # fmt: skip
ACTION = "last action"


def find_places(met: pl.DataFrame, ranks: pl.Series, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the place of each of `ranks`: the collective for which it lost most, and what it did before.

    Columns: rank, operation, group, activity (null: nothing was recorded), after, before. `met` are meetings with
    lost_ns. The place is that of the meeting with the median loss, among those at which the rank lost most, in steps
    of which there are spans.
    """
    shown = spans["step"].drop_nulls().unique().to_list()
    rows = [_place(met.filter(pl.col("rank") == rank), spans, shown) for rank in ranks]
    return pl.DataFrame(rows, schema=PLACES, orient="row")


def _place(met: pl.DataFrame, spans: pl.DataFrame, shown: Collection[int]) -> dict[str, object]:
    sums = met.group_by("operation", "group").agg(pl.sum("lost_ns")).sort("lost_ns", "operation", "group")
    most = sums.row(-1, named=True)
    same = met.filter(pl.col("lost_ns") > 0, operation=most["operation"], group=most["group"])
    with_spans = same.filter(pl.col("step").is_in(list(shown)))
    same = with_spans if with_spans.height else same
    usual = same.sort("lost_ns", "arrived_ns").row((same.height - 1) // 2, named=True)
    return {
        "rank": usual["rank"],
        "operation": usual["operation"],
        "group": usual["group"],
        **_stretch(usual, spans),
    }


def _stretch(meeting: Mapping[str, int], spans: pl.DataFrame) -> dict[str, object]:
    """Return the longest thing that a rank did between two moments: activity, and what came before and after it."""
    since_ns, until_ns, rank = meeting["since_ns"], meeting["arrived_ns"], meeting["rank"]
    own = spans.filter(pl.col("rank") == rank, pl.col("end_ns") > since_ns, pl.col("start_ns") < until_ns)
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
    before = {"start_ns": since_ns, "end_ns": since_ns, "label": _before(spans, rank, since_ns)}
    after = {"start_ns": until_ns, "end_ns": until_ns, "label": f"the {meeting['operation']}"}
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


def _before(spans: pl.DataFrame, rank: int, moment_ns: int) -> str:
    """Return what ended on a rank at a moment: a collective, or its last action of a kind."""
    ended = spans.filter(pl.col("rank") == rank, pl.col("end_ns") == moment_ns)
    actions = ended.filter(pl.col("kind").is_in(ACTION_KINDS))
    if actions.height:
        return f"its last {actions['kind'][0]}".replace("_", " ")
    named = ended.filter(pl.col("name").str.contains(SEPARATOR, literal=True))
    return f"the {named['name'][0].split(SEPARATOR)[0]}" if named.height else ACTION
