"""Compute the parallel coordinates of every rank from the sizes and the order of the dimensions.

The first dimension of an order varies fastest from rank to rank, as in `RankGenerator` of Megatron-core 0.16
(megatron/core/parallel_state.py). Expert parallelism is not a factor of the number of ranks: `ep` is accepted in an
order and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.errors import InputError, UsageError
from stagescope.vocabulary.parallel import DEFAULT_ORDER, DIMENSIONS, NO_FACTOR

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Layout:
    """The sizes and order of the parallel dimensions of a run, as far as the caller specified them."""

    pp: int | None = None
    dp: int | None = None
    tp: int | None = None
    cp: int | None = None
    order: str = DEFAULT_ORDER

    @property
    def is_given(self) -> bool:
        """Whether the caller specified a size or an order."""
        return self.order != DEFAULT_ORDER or any(size is not None for size in self._sizes.values())

    @property
    def rank_count(self) -> int | None:
        """Number of ranks of the whole run; None unless both pp and dp are given."""
        open_sizes = self.pp is None or self.dp is None
        return None if open_sizes else prod(size or 1 for size in self._sizes.values())

    @property
    def _sizes(self) -> dict[str, int | None]:
        return {name: getattr(self, name) for name in DIMENSIONS}

    def sizes(self, world_size: int) -> dict[str, int]:
        """Return the size of every dimension for a run of `world_size` ranks.

        If pp or dp is not given, it takes the remaining factor (pp if both are missing). Every other size defaults
        to 1. Raises InputError if the sizes do not multiply to `world_size`; if all sizes are given, fewer ranks may
        be present.
        """
        given = {name: size for name, size in self._sizes.items() if size is not None}
        known = prod(given.values())
        free = next((name for name in ("pp", "dp") if name not in given), None)
        if free is None:
            if world_size > known:
                raise InputError.layout_too_small(given, known, world_size)
            return {**dict.fromkeys(DIMENSIONS, 1), **given}
        if world_size % known:
            raise InputError.layout_does_not_divide(given, known, world_size)
        return {**dict.fromkeys(DIMENSIONS, 1), **given, free: world_size // known}


def coordinates(ranks: Sequence[int], layout: Layout, world_size: int | None = None) -> pl.DataFrame:
    """Return the coordinates of `ranks`: rank, pp, dp, tp, cp, one row per rank in the order given.

    `world_size` is the number of ranks of the run and defaults to the highest rank plus one. Raises InputError if
    the sizes do not fit it, UsageError for an invalid order.
    """
    sizes = layout.sizes(world_size or max(ranks, default=-1) + 1)
    numbers = pl.DataFrame({"rank": pl.Series(ranks, dtype=pl.Int32)})
    columns, stride = {}, 1
    for name in _dimensions(layout.order, sizes):
        columns[name] = (pl.col("rank") // stride % sizes[name]).cast(pl.Int32)
        stride *= sizes[name]
    absent = {name: pl.lit(0, pl.Int32) for name in DIMENSIONS if name not in columns}
    return numbers.with_columns(**columns, **absent).select("rank", *DIMENSIONS)


def _dimensions(order: str, sizes: dict[str, int]) -> list[str]:
    """Return the dimensions of an order, fastest first; each dimension larger than 1 must appear exactly once."""
    names = [name for name in order.lower().split("-") if name != NO_FACTOR]
    unknown = [name for name in names if name not in DIMENSIONS]
    absent = [name for name, size in sizes.items() if size > 1 and name not in names]
    if unknown or absent or len(set(names)) < len(names):
        raise UsageError.rank_order(order, DEFAULT_ORDER)
    return names
