"""What is summed over the iterations of a run, whose table has a row per rank and step and many columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.large_tables import few_rows, united_rows
from stagescope.vocabulary.causes import CAUSE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

RANKS = ("rank", "pipeline")
SUMMED = ("iteration_ns", "busy_ns", *CAUSE_COLUMNS)


class IterationTotals(NamedTuple):
    """What is known of the iterations of some steps.

    `steps` and `rows` are how many the table ITERATIONS has, `ranks` are those in it (rank and pipeline), and `last`
    are its rows of the pipelines that end last. `sums_ns` are those of the columns SUMMED. `reaches_beyond` is that of
    reach_beyond_windows.
    """

    steps: int
    rows: int
    ranks: pl.DataFrame
    last: pl.DataFrame
    sums_ns: dict[str, int]
    reaches_beyond: bool


def sum_iterations(parts: Iterable[pl.DataFrame]) -> IterationTotals:
    """Return what is known of iterations; `parts` are rows of ITERATIONS, one range of steps after the other."""
    found = [_of_part(rows) for rows in parts]
    return IterationTotals(
        sum(each.steps for each in found),
        sum(each.rows for each in found),
        united_rows((each.ranks for each in found), RANKS),
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
    ranks = rows.select(RANKS).unique()
    last, reaches_beyond = few_rows(rows, pl.col("is_last")), reach_beyond_windows(rows)
    return IterationTotals(rows["step"].n_unique(), rows.height, ranks, last, sums, reaches_beyond)
