"""Tables with rows for all ranges of steps, which stay where the ranges left them until they are used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Change = Callable[[pl.DataFrame], pl.DataFrame]

ROWS_AT_ONCE = 1_000_000
"""Of a piece, unless a single pipeline has more."""


def _unchanged(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


@dataclass(frozen=True)
class LongTable:
    """A table in parts, one for each range of steps, whose rows are sorted by `order` in each part.

    `scans` return the parts, in the order of the ranges; `change` is made to all rows, and keeps their order.
    """

    scans: Sequence[Callable[[], pl.LazyFrame]]
    order: Sequence[str]
    change: Change = _unchanged

    @property
    def _is_sorted(self) -> bool:
        """Whether the parts one after the other are sorted."""
        return len(self.scans) == 1 or self.order[0] == "step"

    @property
    def _keys(self) -> Sequence[str]:
        """By what the parts one after the other have to be sorted: ranges are sorted by step already."""
        return self.order[:1] if self.order[1:2] == ("step",) else self.order

    def changed(self, change: Change) -> LongTable:
        """Return the table with another change after the earlier ones."""
        earlier = self.change
        return replace(self, change=lambda rows: change(earlier(rows)))

    def rows(self) -> pl.DataFrame:
        """Return all rows, sorted."""
        rows = pl.concat([self.change(scan().collect()) for scan in self.scans])
        return rows if self._is_sorted else _in_order(rows, self._keys)

    def pieces(self) -> Iterator[pl.DataFrame]:
        """Yield the same in pieces, at least one; `order` begins with step or pipeline."""
        if self._is_sorted:
            yield from (self.change(scan().collect()) for scan in self.scans)
            return
        for first, last in self._divided():
            parts = [self.change(_of_pipelines(scan(), first, last)) for scan in self.scans]
            yield pl.concat(parts).sort(self._keys, maintain_order=True)

    def _divided(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last pipeline of each piece."""
        parts = [scan().group_by("pipeline").len().collect() for scan in self.scans]
        counts = pl.concat(parts).group_by("pipeline").agg(pl.sum("len")).sort("pipeline")
        piece = (pl.col("len").cum_sum() - 1) // ROWS_AT_ONCE
        ends = counts.group_by(piece.alias("piece"), maintain_order=True).agg(
            first=pl.col("pipeline").first(), last=pl.col("pipeline").last()
        )
        yield from ends.select("first", "last").iter_rows() if ends.height else [(0, 0)]


def _of_pipelines(rows: pl.LazyFrame, first: int, last: int) -> pl.DataFrame:
    """Return the rows of some pipelines, by which `rows` are sorted: the others are not even read."""
    pipelines = rows.select("pipeline").collect().to_series()
    begin, end = pipelines.search_sorted(first, side="left"), pipelines.search_sorted(last, side="right")
    return rows.slice(begin, end - begin).collect()


def _in_order(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return rows sorted by keys, those that are alike as they were; column by column, which takes half of the memory.

    `rows` has no column afterwards.
    """
    order = rows.select(pl.arg_sort_by(keys, maintain_order=True)).to_series()
    return pl.DataFrame([rows.drop_in_place(name).gather(order) for name in rows.columns])
