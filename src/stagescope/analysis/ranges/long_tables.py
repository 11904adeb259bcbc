"""Tables with rows for all ranges of steps, which stay where the ranges left them until they are used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.large_tables import sort_in_place
from stagescope.model.lazy import InParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Change = Callable[[pl.DataFrame], pl.DataFrame]

ROWS_AT_ONCE = 250_000
"""Of a piece, which takes up to 2 kB for each; those of a pipeline that has more are divided by ranges of steps."""


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

    def parts(self) -> Iterator[pl.DataFrame]:
        """Yield the rows of each range of steps."""
        yield from (self.change(scan().collect()) for scan in self.scans)

    @property
    def in_parts(self) -> InParts:
        """What loads the rows, or one part of them after the other."""
        return InParts(self.rows, self.parts)

    def rows(self) -> pl.DataFrame:
        """Return all rows, sorted."""
        rows = pl.concat(self.parts())
        return rows if self._is_sorted else sort_in_place(rows, self._keys)

    def pieces(self) -> Iterator[pl.DataFrame]:
        """Yield the same in pieces, at least one; `order` begins with step or pipeline."""
        if self._is_sorted:
            yield from self.parts()
        else:
            yield from self.by_pipelines(divides_long=True)

    def by_pipelines(self, *, divides_long: bool) -> Iterator[pl.DataFrame]:
        """Yield the rows of some pipelines after those of others; `order` begins with pipeline.

        `divides_long`: a pipeline with very many steps may be in several pieces.
        """
        counts = [scan().group_by("pipeline").len().sort("pipeline").collect() for scan in self.scans]
        for first, last, count in _divided(counts):
            parts = (
                self.change(_of_pipelines(scan(), rows, first, last))
                for scan, rows in zip(self.scans, counts, strict=True)
            )
            is_long = divides_long and first == last and count > ROWS_AT_ONCE
            if is_long and self._keys == self.order[:1]:  # ranges one after the other are sorted
                yield from parts
            else:
                yield pl.concat(parts).sort(self._keys, maintain_order=True)


class WholePipelines:
    """The rows of a LongTable in pieces of whole pipelines, however many steps these have; see TableParts.

    The order of the table begins with pipeline.
    """

    def __init__(self, table: LongTable, change: Change) -> None:
        self._table, self._change = table, change

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return map(self._change, self._table.by_pipelines(divides_long=False))


def _divided(counts: Sequence[pl.DataFrame]) -> Iterator[tuple[int, int, int]]:
    """Yield the first and the last pipeline of each piece, and its rows, given those of each pipeline in all parts."""
    every = pl.concat(counts).group_by("pipeline").agg(pl.sum("len")).sort("pipeline")
    piece = (pl.col("len").cum_sum() - 1) // ROWS_AT_ONCE
    ends = every.group_by(piece.alias("piece"), maintain_order=True).agg(
        pl.col("pipeline").first().alias("first"), pl.col("pipeline").last().alias("last"), pl.sum("len")
    )
    yield from ends.select("first", "last", "len").iter_rows() if ends.height else [(0, 0, 0)]


def _of_pipelines(rows: pl.LazyFrame, counts: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """Return the rows of some pipelines, by which `rows` are sorted: the others are not even read."""
    before, own = pl.col("pipeline") < first, pl.col("pipeline").is_between(first, last)
    begin, length = counts.select(
        pl.col("len").filter(before).sum(), own=pl.col("len").filter(own).sum()
    ).row(0)
    return rows.slice(begin, length).collect()
