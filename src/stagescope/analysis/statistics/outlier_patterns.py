"""Patterns of outlier actions: what the longest of them have in common that chance does not explain.

A pattern is looked for among the outliers of comparable size: those with at least a quarter of the largest excess.
Garbage collection of Python is known for interrupting one rank after the other; a file system or a network interrupts
all of them at once; a checkpoint or an evaluation returns every n-th step.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.statistics.outlier_activities import common_activity_text

if TYPE_CHECKING:
    from collections.abc import Collection

COMPARABLE_FRACTION = 0.25
FEWEST = 3
FEWEST_IN_ORDER = 4
"""Four ranks are in order by chance once in 24 times, and in 12 in either direction; six of them in 360."""

CHANCE = 0.02
"""A pattern is named if chance gives it less often than this."""

COMMON_FRACTION = 0.5
"""Outliers are on all ranks at once if at least this fraction of the ranks has one at the same time."""


class OutlierPattern(NamedTuple):
    """The rows of OUTLIER_ACTIONS that share a pattern, and the pattern in words; empty if there is none."""

    rows: pl.DataFrame
    text: str


def find_outlier_pattern(
    outliers: pl.DataFrame, ranks: int, microbatches: int, steps: Collection[int]
) -> OutlierPattern:
    """Return the pattern of the table OUTLIER_ACTIONS.

    `ranks` and `microbatches` are how many ranks the run and how many micro-batches a step has; `steps` are those that
    were looked at.
    """
    if outliers.is_empty():
        return OutlierPattern(outliers, "")
    chosen = outliers.filter(pl.col("excess_ns") >= COMPARABLE_FRACTION * pl.max("excess_ns")).sort(
        "start_ns"
    )
    parts = [
        common_activity_text(chosen),
        _of_ranks(chosen, ranks),
        _of_microbatches(chosen, microbatches),
        _of_steps(chosen, steps),
    ]
    return OutlierPattern(chosen, ", ".join(filter(None, parts)))


def _of_ranks(chosen: pl.DataFrame, ranks: int) -> str:
    of_rank = chosen["rank"].to_list()
    distinct = set(of_rank)
    if _at_once(chosen, ranks):
        return "on all ranks at the same time" if len(distinct) == ranks else "on most ranks at the same time"
    if chosen.height >= FEWEST_IN_ORDER and len(distinct) == chosen.height:
        if of_rank in (sorted(of_rank), sorted(of_rank, reverse=True)):
            return "once per rank in rank order, as garbage collection does"
        if len(distinct) == ranks:
            return "once per rank"
    if len(distinct) == 1 and _is_beyond_chance(chosen.height, ranks):
        return f"always on rank {of_rank[0]}"
    return ""


def _at_once(chosen: pl.DataFrame, ranks: int) -> bool:
    """Return whether each outlier overlaps those of at least half of the ranks; one rank alone is no company."""
    if ranks < FEWEST or chosen["rank"].n_unique() < max(FEWEST, COMMON_FRACTION * ranks):
        return False
    end_ns = pl.col("start_ns") + pl.col("duration_ns")
    intervals = chosen.with_columns(end_ns=end_ns)
    return all(
        intervals.filter((pl.col("start_ns") < end) & (pl.col("end_ns") > start))["rank"].n_unique()
        >= max(FEWEST, COMMON_FRACTION * ranks)
        for start, end in intervals.select("start_ns", "end_ns").iter_rows()
    )


def _of_microbatches(chosen: pl.DataFrame, microbatches: int) -> str:
    distinct = chosen["microbatch"].unique()
    if len(distinct) == 1 and _is_beyond_chance(chosen.height, microbatches):
        return f"always micro-batch {distinct[0]}"
    return ""


def _is_beyond_chance(count: int, choices: int) -> bool:
    """Return whether `count` random choices are seldom the same one."""
    return count >= FEWEST and choices > 1 and choices ** (1 - count) < CHANCE


def _of_steps(chosen: pl.DataFrame, steps: Collection[int]) -> str:
    """Return in which steps they are: every n-th one, if all recorded steps in between are consecutive."""
    found = sorted(set(chosen["step"]))
    distances = {after - before for before, after in pairwise(found)}
    if len(found) < FEWEST or len(distances) != 1:
        return ""
    (distance,) = distances
    between = [step for step in steps if found[0] <= step <= found[-1]]
    if distance == 1 or len(between) != found[-1] - found[0] + 1:
        return ""
    # The first one is anywhere, the second one sets the distance, and all others have to hit their step.
    return f"in every {_ordinal(distance)} step" if _is_beyond_chance(len(found) - 1, len(between)) else ""


def _ordinal(number: int) -> str:
    """Return a number such as 2nd or 11th."""
    if number % 100 in (11, 12, 13):  # 11th, not 11st
        return f"{number}th"
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
