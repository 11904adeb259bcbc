"""``--bubble``: the definition of the bubble that a command prints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.analysis import Report

NAMES = ("window", "iteration", "ideal-ratio", "own-span")
"""Those of analysis/bubble.py, which is only imported when a command runs."""


def bubble_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command `--bubble NAME`; the command gets it as `bubble`."""
    return click.option(
        "--bubble",
        type=click.Choice(NAMES),
        default=NAMES[0],
        show_default=True,
        help="Divide idle time by the pipeline window, the iteration, the compute time (as (p-1)/m does), or the "
        "longest own span of a rank.",
    )(function)


def with_bubble(report: Report, name: str) -> Report:
    """Return a report whose bubble has the chosen definition."""
    return replace(report, bubble=report.bubble.of(name))
