"""Divides the pipelines of a run with large steps into groups, and chooses those in its sample.

A single step of 10,000 ranks can have more spans than one process may hold. Then what is usual is learned from groups
of pipelines, one after the other (usual_values.py), and what is asked about single actions is answered by some of the
pipelines. Both depend on the run alone, so that an analysis at once and one in ranges of steps find the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.coverage import covered_ns, unite
from stagescope.vocabulary.kinds import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGE_STEP = 2_000_000
"""Steps with more spans on average are large: analyzed as a whole, each would take more than a gigabyte."""
SPANS_OF_GROUP = 1_000_000
"""Spans per step of a group of pipelines, unless a single pipeline has more."""
SLOWEST_PART = 3
"""One of so many spans of a sample is of the slowest pipelines. The others, evenly over the rest, have to outnumber
them: if many pipelines are slow in the same place, a sample of mostly slow ones would show that as usual."""
FEWEST_PIPELINES = 3
"""Of fewer pipelines, none could be compared with what is usual in several others."""

COLLECTIVE_TIME = "collective_ns"
MEETING_KINDS = (COLLECTIVE, "grad_reduce")


def has_large_steps(steps: int, span_count: int) -> bool:
    """Return whether the steps of a run are large; those of a run without steps are not."""
    return steps > 0 and span_count > LARGE_STEP * steps


def group_pipelines(counts: pl.DataFrame, most: float) -> list[tuple[int, ...]]:
    """Return groups of pipelines, ascending, each filled up to `most` spans, unless a single pipeline has more.

    `counts` has pipeline and spans, the number of its spans in the run.

    >>> group_pipelines(pl.DataFrame({"pipeline": [0, 4, 8, 12], "spans": [4, 5, 11, 2]}), 10)
    [(0, 4), (8,), (12,)]
    """
    groups: list[list[int]] = []
    filled = 0
    for pipeline, spans in counts.select("pipeline", "spans").sort("pipeline").iter_rows():
        if not groups or filled + spans > most:
            groups.append([])
            filled = 0
        groups[-1].append(pipeline)
        filled += spans
    return [tuple(group) for group in groups]


def choose_pipelines(windows: pl.DataFrame, counts: pl.DataFrame, most: float) -> tuple[int, ...] | None:
    """Return the pipelines of the sample of a run with large steps, sorted; None if these are all.

    They have at most `most` spans together, unless too few pipelines would remain to be compared. A third of that
    is of those with the longest mean windows: the slowest pipelines decide how long an iteration takes, and what a fix
    gains counts only until another one is last. The others are evenly over the rest. `windows` are rows of step_bubbles
    in the sampled steps; `counts` is as in group_pipelines. If they have collective_ns (`with_collectives`), pipelines
    are compared without it: where replicas meet inside of a step, all of them take as long as the slowest one.

    >>> counts = pl.DataFrame({"pipeline": [0, 4, 8, 12, 16, 20], "spans": [5] * 6})
    >>> ends = {"window_end_ns": [9, 9, 9, 20, 9, 9], "step": [1] * 6, "window_start_ns": [0] * 6}
    >>> choose_pipelines(pl.DataFrame({"pipeline": counts["pipeline"], **ends}), counts, 15)
    (4, 12, 16)
    """
    if counts.height <= FEWEST_PIPELINES or int(counts["spans"].sum()) <= most:
        return None
    length = pl.max("window_end_ns") - pl.min("window_start_ns")
    if COLLECTIVE_TIME in windows.columns:
        length -= pl.col(COLLECTIVE_TIME).mean()
    lengths = (
        windows.group_by("pipeline", "step").agg(length=length).group_by("pipeline").agg(pl.mean("length"))
    )
    every = counts.select("pipeline", "spans").join(lengths, on="pipeline", how="left")
    slowest_first = every.sort("length", "pipeline", descending=[True, False], nulls_last=True)
    slowest = slowest_first.filter(
        (pl.cum_sum("spans") <= most / SLOWEST_PART) | (pl.int_range(pl.len()) == 0)
    )
    rest = every.join(slowest, on="pipeline", how="anti").sort("pipeline")
    others = _evenly(rest, most - int(slowest["spans"].sum()))
    return tuple(sorted([*slowest["pipeline"], *others]))


def with_collectives(windows: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return rows of step_bubbles with collective_ns: for how long each rank was in collectives during its window.

    A rank that others wait for is in them for a shorter time than these.
    """
    met = spans.filter(pl.col("kind").is_in(MEETING_KINDS))
    return windows.with_columns(covered_ns(windows, unite(met)).alias(COLLECTIVE_TIME))


def _evenly(rest: pl.DataFrame, most: float) -> Sequence[int]:
    """Return as many pipelines as have at most `most` spans, evenly over `rest`; at least the fewest."""
    fewest = FEWEST_PIPELINES - 1
    fitting = int(rest.height * most / max(int(rest["spans"].sum()), 1))
    for count in range(min(fitting, rest.height), fewest, -1):
        chosen = rest[_places(rest.height, count)]
        if chosen["spans"].sum() <= most:
            return chosen["pipeline"].to_list()
    return rest[_places(rest.height, fewest)]["pipeline"].to_list()


def _places(length: int, count: int) -> list[int]:
    """Return the numbers of `count` rows, evenly over so many."""
    return [length * (2 * number + 1) // (2 * count) for number in range(count)]
