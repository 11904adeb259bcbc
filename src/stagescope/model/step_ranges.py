"""Rows of some steps."""

from __future__ import annotations

import polars as pl

from stagescope.vocabulary.steps import StepRange, StepRanges


def is_in_steps(steps: StepRange | StepRanges | None) -> pl.Expr:
    """Return whether the step of a row is in one of the ranges, null without a step; None for all rows."""
    if steps is None:
        return pl.lit(value=True)
    if isinstance(steps, StepRanges):
        return pl.any_horizontal(is_in_steps(each) for each in steps.ranges)
    return pl.col("step").is_between(steps.start, steps.stop, closed="left")


def steps_around(steps: StepRange | StepRanges) -> StepRanges:
    """Return the ranges, each with the step before and after it."""
    ranges = steps.ranges if isinstance(steps, StepRanges) else (steps,)
    return StepRanges(tuple(StepRange(max(0, each.start - 1), each.stop + 1) for each in ranges))
