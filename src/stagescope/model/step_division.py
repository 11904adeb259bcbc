"""Divides the spans of a run by steps, each with what is needed of the steps next to it to analyze it."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def step_windows(basis: pl.DataFrame, steps: StepRange) -> pl.DataFrame:
    """Return when the steps before the chosen ones had ended on each rank, and when those after them began.

    `basis` has rank, step, start_ns and end_ns, as the table of steps. Columns: rank, first_ns and last_ns; null is for
    no such step.
    """
    return basis.group_by("rank").agg(
        first_ns=pl.col("end_ns").filter(pl.col("step") < steps.start).max(),
        last_ns=pl.col("start_ns").filter(pl.col("step") >= steps.stop).min(),
    )


NO_BOUNDS = (-(2**62), 2**62)
"""Of a range whose steps are not in the table of steps: all spans of the steps next to it are needed."""


class NeededSpans(NamedTuple):
    """A range of steps, and which spans of other steps are needed with them.

    They are those of earlier steps that end after `since_ns`, when the first step of the range begins, and those of
    later steps that start before `until_ns`, when its last step has ended. Of the step after it, they are also those
    before its first action, because until then the iteration of the last step goes on, and the first action of every
    rank.
    """

    steps: StepRange
    since_ns: int
    until_ns: int


def extents_of_steps(steps: pl.DataFrame) -> pl.DataFrame:
    """Return when each step began on its first rank and ended on its last one: step, start_ns and end_ns.

    `steps` is the table of steps, or has these rows of some of its parts.
    """
    return steps.group_by("step").agg(pl.min("start_ns"), pl.max("end_ns"))


def needed_spans(extents: pl.DataFrame, ranges: Sequence[StepRange]) -> list[NeededSpans]:
    """Return which spans are needed with each of several ranges; `extents` are those of all steps of the run."""
    found = []
    for each in ranges:
        own = extents.filter(is_in_steps(each)).select(pl.min("start_ns"), pl.max("end_ns")).row(0)
        since_ns, until_ns = (
            bound if bound is not None else none for bound, none in zip(own, NO_BOUNDS, strict=True)
        )
        found.append(NeededSpans(each, since_ns, until_ns))
    return found


def divide_steps(
    spans: pl.DataFrame, needed: Sequence[NeededSpans], steps: Callable[[], pl.DataFrame]
) -> Iterator[pl.DataFrame]:
    """Yield the spans of each of several ranges of steps, with those of other steps that are needed.

    `steps` loads the table of steps of the run, which shows where spans without a step belong, as in rows_in_steps.
    """
    of_step = {
        step: rows for (step,), rows in spans.partition_by("step", as_dict=True, maintain_order=True).items()
    }
    stepless = of_step.pop(None, spans.clear())
    basis = steps() if stepless.height else None
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    first_ns = pl.col("start_ns").filter(is_action).min()
    begins = is_action & (pl.col("start_ns") == pl.col("start_ns").filter(is_action).min().over("rank"))
    known = sorted(of_step)
    starts_ns, ends_ns = _bounds([of_step[step] for step in known])
    for own, since_ns, until_ns in needed:
        first, stop = bisect_left(known, own.start), bisect_left(known, own.stop)
        before = [known[number] for number in range(first) if ends_ns[number] > since_ns]
        after = [known[number] for number in range(stop + 1, len(known)) if starts_ns[number] < until_ns]
        found = [
            *(of_step[step] for step in known[first:stop]),
            *(of_step[step].filter(pl.col("end_ns") > since_ns) for step in before),
            *(
                of_step[step].filter((pl.col("start_ns") < pl.max_horizontal(first_ns, until_ns)) | begins)
                for step in known[stop : stop + 1]
            ),
            *(of_step[step].filter(pl.col("start_ns") < until_ns) for step in after),
            spans.clear(),
        ]
        if basis is not None:
            around = StepRange(max(0, own.start - 1), own.stop + 1)
            found.append(rows_in_steps(stepless, step_windows(basis, around), own, "start_ns"))
        yield pl.concat(found)


def _bounds(parts: Sequence[pl.DataFrame]) -> tuple[list[int], list[int]]:
    """Return the first start and the last end of the spans in each part, which has some."""
    rows = [part.select(pl.min("start_ns"), pl.max("end_ns")).row(0) for part in parts]
    return [start_ns for start_ns, _ in rows], [end_ns for _, end_ns in rows]


def rows_in_steps(frame: pl.DataFrame, windows: pl.DataFrame, steps: StepRange, time: str) -> pl.DataFrame:
    """Return the rows of the steps, and those without a step in the window of their rank, from step_windows.

    `time` is the column with the moment of a row.
    """
    is_after = (pl.col(time) >= pl.col("first_ns")).fill_null(value=True)
    is_before = (pl.col(time) < pl.col("last_ns")).fill_null(value=True)
    is_kept = is_after & is_before
    if "step" in frame.columns:
        is_kept = pl.when(pl.col("step").is_null()).then(is_kept).otherwise(is_in_steps(steps))
    placed = frame.join(windows, on="rank", how="left", maintain_order="left")
    return placed.filter(is_kept).drop("first_ns", "last_ns")
