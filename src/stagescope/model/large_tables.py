"""Operations on tables with a row for every rank and step: a large run fits into memory once, and not twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence


def chosen_rows(frame: pl.DataFrame, is_chosen: pl.Expr) -> pl.DataFrame:
    """Return the rows for which `is_chosen` is true; `frame` itself if these are all rows.

    >>> frame = pl.DataFrame({"step": [0, 1]})
    >>> chosen_rows(frame, pl.col("step") >= 0) is frame
    True
    """
    mask = frame.select(is_chosen.fill_null(value=False).alias("is_chosen"))["is_chosen"]
    return frame if mask.all() else frame.filter(mask)


def sort_in_place(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return rows sorted by keys, those that are alike as they were, column by column, which takes half of the memory.

    Null is last. `frame` has no column afterwards.

    >>> frame = pl.DataFrame({"step": [1, 0], "rank": [0, 1]})
    >>> sort_in_place(frame, ["step"]).rows(), frame.columns
    ([(0, 1), (1, 0)], [])
    """
    order = frame.select(pl.arg_sort_by(keys, nulls_last=True, maintain_order=True)).to_series()
    return pl.DataFrame([frame.drop_in_place(name).gather(order) for name in frame.columns])
