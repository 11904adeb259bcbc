"""``stagescope show``: a chart of one step and the times per step and rank, in the terminal."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.bubble_option import bubble_option, with_bubble
from stagescope.cli.clock_lines import print_aligned, print_unaligned, without_clock_line
from stagescope.cli.console import (
    LEAST_WIDTH,
    echo,
    echo_data,
    has_sixteen_colors,
    print_styled,
    terminal_width,
)
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.reading import (
    align_option,
    cached_paths,
    exit_code,
    read_cached,
    reading_options,
    warn_partial,
    while_analyzing,
)
from stagescope.cli.run_paths import RUN_PATH
from stagescope.vocabulary.language import filled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.analysis import Report
    from stagescope.api import RunFacts, ShownStep
    from stagescope.model import Timeline


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
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=RUN_PATH)
@click.option(
    "--step", metavar="N", type=click.IntRange(min=0), help="Step to draw; omit to draw a typical one."
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Use only ASCII characters.")
@click.option(
    "--width",
    metavar="N",
    type=click.IntRange(min=LEAST_WIDTH),
    help="Width in characters; omit to use the terminal's.",
)
@click.option("--no-color", is_flag=True, help="Use no color, as with NO_COLOR in the environment.")
@bubble_option
@align_option
@reading_options
def command(
    paths: tuple[Path, ...], facts: RunFacts, step: int | None, *, bubble: str, align: bool, **drawing: Any
) -> int:
    """Show a chart of one step, and the times of all steps and ranks, in the terminal.

    PATH is a recording, a trace of another tool, or a directory of them; all of them together are one run.
    """
    from stagescope import api

    source, facts = cached_paths(paths, facts, align=align)
    stored = _read_stored(source, facts, step) if align else None
    timeline = read_cached(source, facts, align=align) if stored is None else stored.metrics.timeline
    ascii_only = drawing["ascii_only"] or not supports_unicode()
    print_understood(timeline)
    print_unaligned(timeline if stored is None else stored.metrics, ascii_only=ascii_only)
    print_chart(timeline if stored is None else stored.timeline, step, **drawing)
    print_aligned(api.clock_report(timeline), ascii_only=ascii_only)
    echo()
    metrics = api.analyze(timeline, explain=False) if stored is None else stored.metrics
    report = with_bubble(metrics, bubble)
    remaining = without_clock_line(report.diagnostics)
    print_tables(replace(report, diagnostics=remaining), width=drawing["width"], ascii_only=ascii_only)
    return exit_code(timeline, report.diagnostics)


def _read_stored(
    paths: Sequence[str | os.PathLike[str]], facts: RunFacts, step: int | None
) -> ShownStep | None:
    """Return a step of a stored run and the metrics of the run, None for anything else; with warnings."""
    from stagescope import api

    found = while_analyzing(lambda show: api.show_stored_run(*paths, step=step, on_progress=show, **facts))
    if found is not None:
        warn_partial(found.metrics.timeline)
    return found


def print_understood(timeline: Timeline) -> None:
    """Print what was understood of a trace whose actions were mapped or inferred; nothing for other runs."""
    from stagescope.reports.understood import understood_lines

    lines = understood_lines(timeline)
    for line in lines:
        echo_data(line)
    if lines:
        echo()


def print_chart(
    timeline: Timeline,
    step: int | None = None,
    *,
    width: int | None = None,
    ascii_only: bool = False,
    no_color: bool = False,
) -> None:
    """Print the chart of a step, by default a typical one, with the width and characters of this terminal."""
    from stagescope.reports.terminal import SIXTEEN, draw_step

    width, color = width or terminal_width(), _uses_color(no_color=no_color)
    chart = draw_step(
        timeline,
        step,
        width=width,
        ascii_only=ascii_only or not supports_unicode(),
        color=SIXTEEN if color and has_sixteen_colors() else color,
    )
    if not color:
        echo_data(chart.plain)
        return
    print_styled(chart, width)


def print_tables(report: Report, *, width: int | None = None, ascii_only: bool = False) -> None:
    """Print the times per step and per rank, followed by the diagnostics."""
    from stagescope.reports.tables import step_and_rank_tables

    ascii_only = ascii_only or not supports_unicode()
    echo_data(step_and_rank_tables(report, width=width or terminal_width(), ascii_only=ascii_only))
    bubble = report.bubble
    text = f"bubble: idle time over {bubble.denominator}"
    if bubble.fraction is None:
        text = f"bubble: unknown, because {bubble.unknown_because}"
    echo_data(filled(text, width or terminal_width()))
    print_diagnostics(report.diagnostics)


def print_text(text: str) -> None:
    """Print text, with ASCII spellings of units if standard output is limited to ASCII."""
    echo(text if supports_unicode() else text.replace("µ", "u"))


def supports_unicode() -> bool:
    """Return whether the encoding of standard output has block characters."""
    try:
        "▌█·µ".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _uses_color(*, no_color: bool) -> bool:
    """Return whether to use color: only on a terminal, and unless the user opted out (no-color.org)."""
    return sys.stdout.isatty() and not no_color and not os.environ.get("NO_COLOR")
