"""The line about the clocks of a run, said once: first where its machines could not be put on one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.clocks import ClockReport
    from stagescope.model.diagnostics import Diagnostic

NOT_COMPARABLE = "Steps of pipelines that reach across them, and their bubbles, are not measured."


def say_apart(clocks: ClockReport, *, ascii_only: bool = False) -> None:
    """Print that machines are not on one clock, and what that means; nothing where they are."""
    if clocks.left_out:
        click.echo(in_ascii(_line(clocks)) if ascii_only else _line(clocks))
        click.echo(NOT_COMPARABLE)
        click.echo()


def aligned_line(clocks: ClockReport) -> str | None:
    """Return how well the machines were put on one clock; None where there was but one, or `say_apart` speaks."""
    return _line(clocks) if clocks.machines and not clocks.left_out else None


def say_aligned(clocks: ClockReport, *, ascii_only: bool = False) -> None:
    """Print how well the machines were put on one clock; nothing where there was but one, or `say_apart` spoke."""
    line = aligned_line(clocks)
    if line:
        click.echo(in_ascii(line) if ascii_only else line)


def without_clock_line(diagnostics: Sequence[Diagnostic], clocks: ClockReport) -> tuple[Diagnostic, ...]:
    """Return the diagnostics but for the one that says what the line says."""
    from stagescope.clocks import clock_line

    said = clock_line(clocks).rstrip(".") if clocks.machines else None
    return tuple(one for one in diagnostics if one.message != said)


def _line(clocks: ClockReport) -> str:
    """Return the line, names of machines in it without what would move a cursor."""
    from stagescope.clocks import clock_line

    return "".join(character if character.isprintable() else "?" for character in clock_line(clocks))


def in_ascii(text: str) -> str:
    """Return text for a terminal that shows ASCII alone."""
    return text.replace("µ", "u").encode("ascii", "replace").decode()
