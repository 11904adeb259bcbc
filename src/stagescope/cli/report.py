"""``stagescope report``: where the time of a run went and how to reduce it, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.bubble_option import bubble_option, with_bubble
from stagescope.cli.clock_lines import aligned_line, print_unaligned, without_clock_line
from stagescope.cli.console import echo, echo_data, terminal_width
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.fail_if import EXIT_CONDITION, judge, parse_condition, quantities_text
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.cli.layers_option import layers_option
from stagescope.cli.reading import (
    align_option,
    cached_paths,
    exit_code,
    read_cached,
    reading_options,
    skip_steps_option,
    warn_partial,
    while_analyzing,
)
from stagescope.cli.run_paths import RUN_PATH
from stagescope.cli.show import print_tables, print_text, print_understood, supports_unicode
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.language import filled
from stagescope.vocabulary.steps import parse_skipped

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.api import RunFacts
    from stagescope.clocks import ClockReport


@dataclass(frozen=True)
class Wanted:
    """The forms of the report that a call requests."""

    json_path: Path | None
    html_path: Path | None
    markdown: bool
    full: bool
    force: bool
    bubble: str
    fail_if: tuple[str, ...]
    layers: tuple[int, ...]


@click.command(
    "report",
    epilog=f"""
    \b
    Examples:
      stagescope report recordings
      stagescope report recordings --full
      stagescope report recordings --no-cache
      stagescope report s3://bucket/recordings   needs pip install 'stagescope[cloud]'
      stagescope report recordings --markdown >> issue.md
      stagescope report recordings --html report.html
      stagescope report recordings --json - | jq .bubble.fraction
      stagescope report recordings --fail-if 'bubble>0.3' --fail-if 'step>120ms'

    \b
    Quantities for --fail-if; times are durations, everything else is a fraction:
    {quantities_text(indent=4)}
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=RUN_PATH)
@click.option(
    "--full",
    is_flag=True,
    help="Also print collectives, the slowdowns of the what-if analysis, and the times of every step and rank.",
)
@click.option("--markdown", is_flag=True, help="Print Markdown, for an issue or a pull request.")
@json_options("the report")
@click.option(
    "--html",
    "html_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the run and its report as one page that opens offline.",
)
@click.option(
    "--fail-if",
    metavar="CONDITION",
    multiple=True,
    help=f"Exit with {EXIT_CONDITION} if this holds, such as 'bubble>0.3' or 'step>120ms'; can be repeated.",
)
@bubble_option
@layers_option
@skip_steps_option
@align_option
@reading_options
def command(
    paths: tuple[Path, ...], facts: RunFacts, *, align: bool, skip_steps: str | None, **wanted: Any
) -> int:
    """Report where the time went and how to reduce step time.

    Prints the verdict, the lost time by cause, the cost of every stage, and further findings. Causes divide by the
    whole iteration where it was recorded. The bubble divides by the pipeline's window, which extends from the first
    start to the last end of all its forward and backward actions; --bubble chooses another definition.
    """
    from stagescope import api

    asked = Wanted(**wanted)
    conditions = [parse_condition(text) for text in asked.fail_if]
    skipped = parse_skipped(skip_steps) if skip_steps else None
    if asked.markdown and asked.json_path == STANDARD_OUTPUT:
        raise UsageError.one_of(("--markdown", "--json -"), ("both",))
    source, facts = cached_paths(paths, facts, align=align)
    report = None
    if align and skipped is None and not asked.layers:
        report = while_analyzing(lambda show: api.report_of_stored_run(*source, on_progress=show, **facts))
    if report is None:
        timeline = read_cached(source, facts, align=align)
        report = api.analyze(timeline, layers=asked.layers, skip_steps=skipped)
    else:
        warn_partial(report.timeline)
    _write(report, asked)
    judgments = judge(with_bubble(report, asked.bubble), conditions)
    for judgment in judgments:
        echo(f"stagescope: {judgment.text}", err=True)
    return (
        EXIT_CONDITION
        if any(each.fails for each in judgments)
        else exit_code(report.timeline, report.diagnostics)
    )


def _write(report: Report, asked: Wanted) -> None:
    """Write the requested files, and print the report in the requested form."""
    from stagescope import api

    clocks = api.clock_report(report.timeline)
    if asked.html_path is not None:
        api.export(report, asked.html_path, format="html", force=asked.force)
    if asked.json_path == STANDARD_OUTPUT:
        echo_data(json_text(api.report_json(report)), nl=False)
        return
    if asked.json_path is not None:
        write_json(api.report_json(report), asked.json_path, force=asked.force)
    shown = with_bubble(report, asked.bubble)
    if asked.markdown:
        echo_data(_markdown(shown, clocks), nl=False)
        return
    print_report(shown, clocks, full=asked.full)
    written = [path for path in (asked.json_path, asked.html_path) if path is not None]
    if written:
        echo(f"\nwrote {' and '.join(map(str, written))}")


def print_report(report: Report, clocks: ClockReport, *, full: bool = False) -> None:
    """Print a report as one screen, with `full` also collectives, slowdowns, and the times of every step and rank."""
    from stagescope.analysis.iteration.last_pipeline import removal_order_text
    from stagescope.reports.collective_table import collective_lines
    from stagescope.reports.ledger_bars import unrecorded_text
    from stagescope.reports.slowdown_text import slowdown_lines
    from stagescope.reports.text import report_text

    ascii_only = not supports_unicode()
    print_understood(report.timeline)
    print_unaligned(report, ascii_only=ascii_only)
    line = aligned_line(clocks)
    echo_data(report_text(report, line, width=terminal_width(), ascii_only=ascii_only))
    remaining = without_clock_line(report.diagnostics)
    if full:
        unrecorded = unrecorded_text(report.explanation.lost_time if report.explanation else None)
        echo(f"\n{unrecorded}\n" if unrecorded else "")
        if report.explanation is not None:
            interactions = removal_order_text(report.explanation.losses)
            echo(f"{interactions}\n" if interactions else "", nl=False)
        if report.verdict is not None and report.verdict.tested:
            print_text(filled(report.verdict.tested, terminal_width()) + "\n")
        for line in collective_lines(report, width=terminal_width()):
            echo_data(line)
        for sentence in slowdown_lines(report.slowdowns, width=terminal_width()):
            echo_data(sentence)
        print_tables(replace(report, diagnostics=remaining))
    else:
        print_diagnostics(remaining)


def _markdown(report: Report, clocks: ClockReport) -> str:
    from stagescope.api import clock_line
    from stagescope.reports.markdown import report_markdown

    line = clock_line(clocks) if clocks.machines else None
    remaining = without_clock_line(report.diagnostics)
    return report_markdown(replace(report, diagnostics=remaining), line)
