"""``stagescope show``: a chart of one step and the main figures, in the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.clock_lines import print_aligned, print_unaligned, without_clock_line
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.reading import align_option, exit_code, read_paths, reading_options

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.ingest.reader import ReadOptions
    from stagescope.model import Timeline

NO_TERMINAL_WIDTH = 80
NARROWEST = 40


@click.command(
    "show",
    epilog="""
    \b
    Examples:
      stagescope show recordings
      stagescope show recordings --step 3
      stagescope show rank0.sscope rank1.sscope --ascii --width 120 > chart.txt
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--step", metavar="N", type=click.IntRange(min=0), help="Step to draw; a typical one unless given."
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Use ASCII characters alone.")
@click.option(
    "--width", metavar="N", type=click.IntRange(min=NARROWEST), help="Columns; those of the terminal."
)
@click.option("--no-color", is_flag=True, help="Use no color, as with NO_COLOR in the environment.")
@align_option
@reading_options
def command(
    paths: tuple[Path, ...], options: ReadOptions, step: int | None, *, align: bool, **drawing: Any
) -> int:
    """Show a chart of one step and the main figures in the terminal.

    PATH is a recording, a trace of another tool, or a directory with some; all of them together are one run.
    """
    from stagescope import api as workflow

    read = read_paths(paths, options, align=align)
    timeline, clocks = read.timeline, read.clocks
    ascii_only = drawing["ascii_only"] or not speaks_unicode()
    print_unaligned(clocks, ascii_only=ascii_only)
    print_chart(timeline, step, **drawing)
    print_aligned(clocks, ascii_only=ascii_only)
    click.echo()
    report = workflow.analyze(timeline, explain=False)
    unsaid = without_clock_line(report.diagnostics)
    print_figures(replace(report, diagnostics=unsaid), width=drawing["width"], ascii_only=ascii_only)
    return exit_code(timeline)


def print_chart(
    timeline: Timeline,
    step: int | None = None,
    *,
    width: int | None = None,
    ascii_only: bool = False,
    no_color: bool = False,
) -> None:
    """Print the chart of a step, of a typical one unless given, as this terminal can show it."""
    from stagescope.reports.terminal import draw_step

    width, color = width or terminal_width(), _wants_color(no_color=no_color)
    chart = draw_step(timeline, step, width=width, ascii_only=ascii_only or not speaks_unicode(), color=color)
    if not color:
        click.echo(chart.plain)
        return
    from rich.console import Console

    Console(width=width, highlight=False).print(chart)


def print_figures(report: Report, *, width: int | None = None, ascii_only: bool = False) -> None:
    """Print the figures per step and per rank, and below them what has to be known to trust them."""
    from stagescope.reports.tables import figures_table

    ascii_only = ascii_only or not speaks_unicode()
    click.echo(figures_table(report, width=width or terminal_width(), ascii_only=ascii_only))
    print_diagnostics(report.diagnostics)


def terminal_width() -> int:
    """Return the columns of the terminal, 80 where standard output is none."""
    if not sys.stdout.isatty():
        return NO_TERMINAL_WIDTH
    return max(NARROWEST, shutil.get_terminal_size((NO_TERMINAL_WIDTH, 24)).columns)


def speaks_unicode() -> bool:
    """Tell whether standard output can carry block characters."""
    try:
        "▌█·µ".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _wants_color(*, no_color: bool) -> bool:
    """Tell whether to color: only on a terminal, and not against the user's wish (no-color.org)."""
    return sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR")
