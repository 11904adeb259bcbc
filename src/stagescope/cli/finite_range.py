"""A range of numbers for options; NaN is in none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click import Context, Parameter


class FiniteRange(click.FloatRange):
    """Numbers within bounds, as click has them, without NaN and infinity, which fit into any open range."""

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:
        """Return the number; fail with a usage error for anything else."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number
