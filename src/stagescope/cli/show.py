"""``stagescope show``: a chart of one step and the main figures, in the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from stagescope.cli.diagnostics import diagnostic_lines
from stagescope.cli.reading import exit_code, read_paths

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
    "--step", type=click.IntRange(min=0), help="Step to draw; the one of median length unless given."
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters alone.")
@click.option("--width", type=click.IntRange(min=NARROWEST), help="Columns to use; as wide as the terminal.")
@click.option("--no-color", is_flag=True, help="Draw without color, as with NO_COLOR in the environment.")
def command(paths: tuple[Path, ...], step: int | None, width: int | None, **look: bool) -> int:
    """Show a chart of one step and the main figures in the terminal.

    PATH is a recording, a table of spans, or a directory with some; all of them together are one run.
    """
    from stagescope import workflow
    from stagescope.analyze import typical_step
    from stagescope.view.tables import figures_table
    from stagescope.view.terminal import draw_step

    timeline = read_paths(paths)
    report = workflow.analyze(timeline)
    columns = width or _terminal_width()
    drawn = step if step is not None else typical_step(report)
    if drawn is not None:
        ascii_only = look["ascii_only"] or not _speaks_unicode()
        click.echo(draw_step(timeline, drawn, width=columns, ascii_only=ascii_only, color=_color(**look)))
        click.echo()
    click.echo(figures_table(report, width=columns))
    for line in diagnostic_lines(report.diagnostics):
        click.echo(line)
    return exit_code(timeline)


def _terminal_width() -> int:
    """Return the columns of the terminal, 80 where there is none."""
    if not sys.stdout.isatty():
        return NO_TERMINAL_WIDTH
    return max(NARROWEST, shutil.get_terminal_size((NO_TERMINAL_WIDTH, 24)).columns)


def _speaks_unicode() -> bool:
    """Tell whether standard output can carry block characters."""
    try:
        "▌█·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _color(*, no_color: bool, **_: bool) -> bool:
    """Tell whether to color: only on a terminal, and not against the user's wish (no-color.org)."""
    return sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR")
