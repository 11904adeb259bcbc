"""Options of the commands that find out whether a training hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.finite_range import FiniteRange

if TYPE_CHECKING:
    from collections.abc import Callable


def after_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add to a command `--after S`; the command gets `after`, in seconds."""
    return click.option(
        "--after",
        metavar="S",
        type=FiniteRange(min=1.0),
        default=10.0,
        show_default=True,
        help="Seconds without a span after which a rank has stopped; at least three times its longest pause before.",
    )(function)
