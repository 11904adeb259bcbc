"""What show, report and export have in common: read the paths, and say first if data are missing."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.timeline import Timeline

MANY_FILES = 16
"""Fewer files than this are read before a person wonders."""

EXIT_PARTIAL = 1


def read_paths(paths: Sequence[Path]) -> Timeline:
    """Return the timeline of `paths`; says so on standard error, first of all, if data are missing from it.

    While many files are read, a terminal shows that something happens.
    """
    from stagescope import workflow

    with ExitStack() as shown:
        timeline = workflow.read(*paths, on_found=lambda file_count: _show_progress(shown, file_count))
    if timeline.is_partial:
        _say_partial(timeline)
    return timeline


def exit_code(timeline: Timeline) -> int:
    """Return the exit code of a command that did all it could with `timeline`."""
    return EXIT_PARTIAL if timeline.is_partial else 0


def _show_progress(shown: ExitStack, file_count: int) -> None:
    if file_count < MANY_FILES or not sys.stderr.isatty():
        return
    from rich.console import Console

    shown.enter_context(Console(stderr=True).status(f"reading {file_count} files"))


def _say_partial(timeline: Timeline) -> None:
    errors = timeline.diagnostics.filter(timeline.diagnostics["severity"] == "error")
    more = f" (and {errors.height - 1} more, see below)" if errors.height > 1 else ""
    click.echo(f"stagescope: partial data: {errors['message'][0]}{more}", err=True)
    click.echo("  what follows holds for what was recorded, and the exit code is 1", err=True)
