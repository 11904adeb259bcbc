"""What other ranks can depend on among the spans of a rank, without its many actions and transfers: its outline.

Ranks of other pipelines meet a rank at collectives, and wait for it until its window has ended. So the pipelines of a
large step can be analyzed one group after the other, each with its own spans and the outlines of all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.tables import SPANS
from stagescope.model.validate import in_order
from stagescope.vocabulary.kinds import ACTION_KINDS, COLLECTIVE, COMPUTE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterator

TURN = ["rank", "step"]
"""The actions of a rank in a step are its turn."""
_MOMENTS = ("rank", "start_ns", "end_ns", "wait_end_ns")


def outline(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans that are no actions of a step, without transfers and collectives inside of turns.

    Of the actions of every turn, those remain that begin first and that end last, and of those of a rank, one of its
    smallest stage.
    """
    rows = spans.with_row_index("row")
    acting = _acting(rows.select("row", *TURN, "kind", "lane", "stage", "microbatch", "start_ns", "end_ns"))
    beside = rows.filter(~_is_acting() & ~_may_be_inside())["row"]
    may_be = rows.filter(_may_be_inside()).select("row", *_MOMENTS)
    outside = may_be.filter(~_inside(may_be, acting))["row"]
    kept = pl.concat([*_bounds(acting), beside, outside])
    found: pl.DataFrame = spans[kept.unique().sort()]
    return found


def inner_collectives(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives that the outline of the same spans leaves out: those inside of turns."""
    inner = spans.filter(_may_be_inside() & (pl.col("kind") == COLLECTIVE))
    found: pl.DataFrame = inner.filter(_inside(inner, _acting(spans)))
    return found


def with_others(spans: pl.DataFrame, others: pl.DataFrame | None) -> pl.DataFrame:
    """Return the spans of some pipelines with those of other ones, but without transfers; None: there are no others."""
    if others is None:
        return spans
    beside = ~pl.col("kind").is_in(TRANSFERS)
    return in_order(pl.concat([spans.filter(beside), others.filter(beside)]), SPANS)


def of_ranks(spans: pl.DataFrame) -> pl.Expr:
    """Return whether a row is of a rank with spans."""
    return pl.col("rank").is_in(spans["rank"].unique().implode())


def _is_acting() -> pl.Expr:
    return pl.col("kind").is_in(ACTION_KINDS) & pl.col("step").is_not_null()


def _acting(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the actions of steps, with when they last."""
    return spans.filter(_is_acting()).with_columns(last_ns=pl.max_horizontal("start_ns", "end_ns"))


def _may_be_inside() -> pl.Expr:
    is_inner = (pl.col("kind") == COLLECTIVE) & pl.col("stage").is_not_null()
    return pl.col("kind").is_in(TRANSFERS) | is_inner


def _is_placed() -> pl.Expr:
    return (pl.col("lane") == COMPUTE) & pl.col("stage").is_not_null() & pl.col("microbatch").is_not_null()


def _bounds(acting: pl.DataFrame) -> Iterator[pl.Series]:
    """Yield the rows of the actions that remain: the bounds of turns, also among placed actions, and first stages."""
    row = pl.col("row")
    first, last = row.get(pl.col("start_ns").arg_min()), row.get(pl.col("last_ns").arg_max())
    for which in (acting, acting.filter(_is_placed())):
        found = which.group_by(TURN).agg(first=first, last=last)
        yield from (found["first"], found["last"])
    staged = acting.filter(pl.col("stage").is_not_null())
    yield staged.group_by("rank").agg(row.get(pl.col("stage").arg_min()))["row"]


def _inside(rows: pl.DataFrame, acting: pl.DataFrame) -> pl.Series:
    """Return which rows begin and end within the placed actions of a turn."""
    turns = (
        acting.filter(_is_placed())
        .group_by(TURN)
        .agg(began_ns=pl.min("start_ns"), ended_ns=pl.max("last_ns"))
    )
    placed = (
        rows.select(*_MOMENTS)
        .with_row_index("place")
        .sort("start_ns")
        .join_asof(
            turns.sort("began_ns"),
            left_on="start_ns",
            right_on="began_ns",
            by="rank",
            check_sortedness=False,
        )
        .sort("place")
    )
    is_inside = pl.max_horizontal("end_ns", "wait_end_ns") <= pl.col("ended_ns")
    return placed.select(is_inside.fill_null(value=False)).to_series()
