"""The line about clock alignment: printed once, and first where some machines could not be aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.cli.console import echo
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.analysis import Report
    from stagescope.clocks import ClockReport
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic

NOT_COMPARABLE = (
    "Pipelines that span these machines cannot be compared: their steps and bubbles are not measured."
)
NONE_SPANS = (
    "No pipeline spans these machines: steps and bubbles are measured, but times of different machines cannot be "
    "compared."
)
SUMMARY_CODES = ("clock.aligned", "clock.unaligned", "trace.mapped", "trace.unmapped")
"""Diagnostics with the same message as the line, or that a line of the table of what was understood states."""


def print_unaligned(run: Timeline | Report, *, ascii_only: bool = False) -> None:
    """Print which machines could not be aligned and the consequence; nothing if all were.

    `run` is a timeline, or its report, which knows without the spans which pipelines cannot be compared.
    """
    from stagescope.analysis import Report
    from stagescope.api import clock_report, unaligned_ranks

    clocks = clock_report(run.timeline if isinstance(run, Report) else run)
    if clocks.unaligned:
        echo(in_ascii(_line(clocks)) if ascii_only else _line(clocks))
        left_out = run.unaligned if isinstance(run, Report) else unaligned_ranks(run)
        echo(NOT_COMPARABLE if left_out else NONE_SPANS)
        echo()


def aligned_line(clocks: ClockReport) -> str | None:
    """Return how well the machines were aligned; None for a single machine, or where print_unaligned prints."""
    return _line(clocks) if clocks.machines and not clocks.unaligned else None


def print_aligned(clocks: ClockReport, *, ascii_only: bool = False) -> None:
    """Print how well the machines were aligned; nothing for a single machine, or where print_unaligned prints."""
    line = aligned_line(clocks)
    if line:
        echo(in_ascii(line) if ascii_only else line)


def without_clock_line(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the diagnostics without those that repeat lines that were printed before."""
    return tuple(one for one in diagnostics if one.code not in SUMMARY_CODES)


def _line(clocks: ClockReport) -> str:
    """Return the line, which has names of machines from files, on one line."""
    from stagescope.api import clock_line

    return printable(clock_line(clocks))


def in_ascii(text: str) -> str:
    """Return text for a terminal that only shows ASCII."""
    return text.replace("µ", "u").encode("ascii", "replace").decode()
