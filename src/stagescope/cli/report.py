"""``stagescope report``: where the time of a run went, and what would win it back, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.clock_lines import aligned_line, print_unaligned, without_clock_line
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.fail_if import EXIT_CONDITION, judge, parse_condition, quantities_text
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.cli.reading import align_option, exit_code, read_paths, reading_options
from stagescope.cli.show import print_figures, speaks_unicode, terminal_width
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.clocks import Aligned, ClockReport
    from stagescope.ingest.reader import ReadOptions


@dataclass(frozen=True)
class Wanted:
    """What the call asks for besides the paths."""

    json_path: Path | None
    html_path: Path | None
    markdown: bool
    full: bool
    force: bool
    fail_if: tuple[str, ...]


@click.command(
    "report",
    epilog=f"""
    \b
    Examples:
      stagescope report recordings
      stagescope report recordings --full
      stagescope report recordings --markdown >> issue.md
      stagescope report recordings --html report.html
      stagescope report recordings --json - | jq .bubble.fraction
      stagescope report recordings --fail-if 'bubble>0.3' --fail-if 'step>120ms'

    \b
    Figures for --fail-if, fractions of the pipeline windows unless they are times:
    {quantities_text(indent=4)}
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--full", is_flag=True, help="Also print the figures of every step and rank.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for an issue or a pull request.")
@json_options("the report")
@click.option(
    "--html",
    "html_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the run with its report as one page that opens anywhere.",
)
@click.option(
    "--fail-if",
    metavar="CONDITION",
    multiple=True,
    help=f"Exit with {EXIT_CONDITION} if this holds, such as 'bubble>0.3' or 'step>120ms'; may be repeated.",
)
@align_option
@reading_options
def command(paths: tuple[Path, ...], options: ReadOptions, *, align: bool, **wanted: Any) -> int:
    """Say where the time of a run went, and what would win it back.

    The verdict, the idle time by cause, the stages, and what else is sure. Idle is what no action covers in a
    step's window, which reaches from the first start to the last end of any forward or backward action in the pipeline.
    """
    from stagescope import api as workflow

    asked = Wanted(**wanted)
    conditions = [parse_condition(text) for text in asked.fail_if]
    if asked.markdown and asked.json_path == STANDARD_OUTPUT:
        raise UsageError.one_of(("--markdown", "--json -"), ("both",))
    read = read_paths(paths, options, align=align)
    report = workflow.analyze(read.timeline)
    _write(report, read, asked)
    judgments = judge(report, conditions)
    for judgment in judgments:
        click.echo(f"stagescope: {judgment.text}", err=True)
    return EXIT_CONDITION if any(each.fails for each in judgments) else exit_code(read.timeline)


def _write(report: Report, read: Aligned, asked: Wanted) -> None:
    """Write the files that were asked for, and print the report in the form that was."""
    from stagescope import api as workflow

    if asked.html_path is not None:
        workflow.export(read.timeline, asked.html_path, format="html", force=asked.force)
    if asked.json_path == STANDARD_OUTPUT:
        click.echo(json_text(report_json(report, read.clocks)), nl=False)
        return
    if asked.json_path is not None:
        write_json(report_json(report, read.clocks), asked.json_path, force=asked.force)
    if asked.markdown:
        click.echo(_markdown(report, read.clocks), nl=False)
        return
    print_report(report, read.clocks, full=asked.full)
    written = [path for path in (asked.json_path, asked.html_path) if path is not None]
    if written:
        click.echo(f"\nwrote {' and '.join(map(str, written))}")


def print_report(report: Report, clocks: ClockReport, *, full: bool = False) -> None:
    """Print an explained report as one screen, with `full` also the figures of every step and rank."""
    from stagescope.reports.text import report_text

    ascii_only = not speaks_unicode()
    print_unaligned(clocks, ascii_only=ascii_only)
    line = aligned_line(clocks)
    click.echo(report_text(report, line, width=terminal_width(), ascii_only=ascii_only))
    unsaid = replace(report, diagnostics=without_clock_line(report.diagnostics))
    if full:
        click.echo()
        print_figures(unsaid)
    else:
        print_diagnostics(unsaid.diagnostics)


def report_json(report: Report, clocks: ClockReport) -> dict[str, object]:
    """Return the report as plain data, with the clocks where there is more than one machine."""
    from stagescope.analysis import to_json
    from stagescope.clocks import report_json as clocks_json

    return to_json(report, clocks_json(clocks))


def _markdown(report: Report, clocks: ClockReport) -> str:
    from stagescope.clocks import clock_line
    from stagescope.reports.markdown import report_markdown

    said = clock_line(clocks) if clocks.machines else None
    unsaid = replace(report, diagnostics=without_clock_line(report.diagnostics))
    return report_markdown(unsaid, said)
