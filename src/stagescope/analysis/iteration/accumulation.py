"""Gradient accumulation: several steps of the schedule in one iteration, which ends with an optimizer step.

A recorded step is one call of the schedule. An iteration is what lies between two optimizer steps, so a training that
accumulates gradients over three calls has three steps in one iteration. How many steps an iteration has is how many
most optimizer steps are apart. A single optimizer step that is missing does not change that: mixed precision skips it
where gradients overflow. Without two recorded optimizer steps, every step counts as an iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.vocabulary.causes import CAUSE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Collection

FEWEST_OPTIMIZER_STEPS = 2
TIMES = ("iteration_ns", "window_ns", "busy_ns", *CAUSE_COLUMNS)


class Accumulation(NamedTuple):
    """How steps are grouped: `table` has step, iteration (its first step) and is_complete for every step.

    `steps_per_iteration` is the size of all complete iterations; 1 if gradients are not accumulated over steps.
    """

    table: pl.DataFrame
    steps_per_iteration: int

    def size_among(self, steps: Collection[int]) -> int:
        """Return how many steps an iteration has in a report about `steps`: 1 if iterations are cut by their choice."""
        chosen = self.table.filter(pl.col("step").is_in(list(steps)))
        sizes = chosen.group_by("iteration").len()["len"]
        return self.steps_per_iteration if (sizes == self.steps_per_iteration).all() else 1


def steps_with_optimizer(spans: pl.DataFrame) -> pl.Series:
    """Return the steps in which an optimizer step was recorded, sorted."""
    steps: pl.Series = spans.filter(pl.col("kind") == "optimizer")["step"].drop_nulls().unique().sort()
    return steps


def find_accumulation(steps: pl.Series, with_optimizer: pl.Series) -> Accumulation:
    """Return how `steps`, the numbers of all steps, are grouped; an optimizer step belongs to the step before it.

    `with_optimizer` is from steps_with_optimizer.
    """
    numbers = np.sort(steps.unique().to_numpy())
    ends = np.flatnonzero(np.isin(numbers, with_optimizer.to_numpy()))
    size = _usual_distance(ends)
    if size == 1:
        each = pl.DataFrame({"step": numbers, "iteration": numbers})
        return Accumulation(_typed(each.with_columns(is_complete=pl.lit(value=True))), 1)
    # Where an optimizer step was skipped, the iteration has ended nevertheless.
    gaps = [np.arange(end, start, -size) for start, end in zip((-1, *ends[:-1]), ends, strict=True)]
    begins = np.union1d(0, np.concatenate(gaps) + 1)
    first = begins[np.searchsorted(begins, np.arange(len(numbers)), side="right") - 1]
    table = pl.DataFrame({"step": numbers, "iteration": numbers[first]})
    is_complete = (pl.len().over("iteration") == size) & (pl.int_range(pl.len()) <= int(ends[-1]))
    return Accumulation(_typed(table.with_columns(is_complete=is_complete)), size)


def _usual_distance(ends: np.ndarray) -> int:
    """Return how many steps most optimizer steps are apart, the smallest of several; 1 if that is unknown."""
    if len(ends) < FEWEST_OPTIMIZER_STEPS:
        return 1
    distances, counts = np.unique(np.diff(ends), return_counts=True)
    return int(distances[counts.argmax()])


def _typed(table: pl.DataFrame) -> pl.DataFrame:
    return table.cast({"step": pl.Int32, "iteration": pl.Int32})


def unite_steps(iterations: pl.DataFrame, accumulation: Accumulation) -> pl.DataFrame:
    """Return the table ITERATIONS with one row per rank and iteration, given one with a row per rank and step.

    Times are summed; an iteration is whole if all its steps are recorded and followed by another one, and its last
    pipeline is that of its last step.
    """
    if accumulation.steps_per_iteration == 1:
        return iterations
    grouped = (
        iterations.join(accumulation.table, on="step")
        .sort("step", "rank")
        .group_by("iteration", "rank", maintain_order=True)
        .agg(
            pl.sum(*TIMES),
            pl.sum("steps"),
            pl.first("pipeline", "start_ns"),
            pl.last("is_last", "end_ns"),
            is_whole=pl.col("is_whole").all() & pl.col("is_complete").all(),
        )
    )
    return grouped.rename({"iteration": "step"}).select(
        pl.col(name).cast(dtype) for name, dtype in iterations.schema.items()
    )
