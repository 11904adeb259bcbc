"""Rows of some steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from stagescope.vocabulary.steps import StepRange


def is_in_steps(steps: StepRange | None) -> pl.Expr:
    """Return whether the step of a row is in a range, null without a step; None for all rows."""
    if steps is None:
        return pl.lit(value=True)
    return pl.col("step").is_between(steps.start, steps.stop, closed="left")
