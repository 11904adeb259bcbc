"""What is summed over the iterations of a run, whose table has a row per rank and step and many columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.vocabulary.causes import CAUSE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SUMMED = ("iteration_ns", "busy_ns", *CAUSE_COLUMNS)
BOUNDS = ("step", "rank", "pipeline", "start_ns", "end_ns")


class IterationTotals(NamedTuple):
    """What is known of the iterations of some steps.

    `bounds` have the columns BOUNDS of the parts of the table ITERATIONS, and `last` has its rows of the pipelines that
    end last. `sums_ns` are those of the columns SUMMED. `reaches_beyond` is that of reach_beyond_windows.
    """

    bounds: Sequence[pl.DataFrame]
    last: pl.DataFrame
    sums_ns: dict[str, int]
    reaches_beyond: bool


def sum_iterations(parts: Iterable[pl.DataFrame]) -> IterationTotals:
    """Return what is known of iterations; `parts` are rows of ITERATIONS, one range of steps after the other."""
    found = [_of_part(rows) for rows in parts]
    return IterationTotals(
        [rows for each in found for rows in each.bounds],
        pl.concat([each.last for each in found]),
        {name: sum(each.sums_ns[name] for each in found) for name in SUMMED},
        any(each.reaches_beyond for each in found),
    )


def reach_beyond_windows(iterations: pl.DataFrame) -> bool:
    """Return whether iterations are more than windows: the next step, another pipeline or other work was recorded."""
    return bool((iterations["is_whole"] | (iterations["iteration_ns"] != iterations["window_ns"])).any())


def _of_part(rows: pl.DataFrame) -> IterationTotals:
    # 10,000 ranks are idle for more nanoseconds within two weeks than 64 bits can count.
    sums = rows.select(pl.col(SUMMED).cast(pl.Int128).sum()).row(0, named=True)
    return IterationTotals([rows.select(BOUNDS)], rows.filter("is_last"), sums, reach_beyond_windows(rows))
