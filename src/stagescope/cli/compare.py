"""``stagescope compare``: which parts of a run got slower or faster, and whether the difference exceeds noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo, echo_data
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.cli.reading import (
    align_option,
    exit_code,
    read_paths,
    reading_options,
    skip_steps_option,
    warn_errors,
)
from stagescope.cli.run_paths import RUN_PATH
from stagescope.cli.show import print_text
from stagescope.vocabulary.language import localized_list
from stagescope.vocabulary.steps import parse_skipped

if TYPE_CHECKING:
    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.api import RunFacts


@click.command(
    "compare",
    epilog="""
    \b
    Examples:
      stagescope compare before after
      stagescope compare monday tuesday --markdown > comparison.md
      stagescope compare before after --html comparison.html
      stagescope compare before after --json - | jq '.differences[0]'
    """,
)
@click.argument("before", metavar="A", type=RUN_PATH)
@click.argument("after", metavar="B", type=RUN_PATH)
@json_options("the comparison")
@click.option(
    "--html",
    "html_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write both runs as one page that opens offline: B colored by its changes, with A below it.",
)
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
@skip_steps_option
@align_option
@reading_options
def command(
    before: Path,
    after: Path,
    facts: RunFacts,
    json_path: Path | None,
    html_path: Path | None,
    *,
    force: bool,
    markdown: bool,
    skip_steps: str | None,
    align: bool,
) -> int:
    """Report what got slower or faster from run A to run B, beyond noise.

    A and B are each a recording, a trace, or a directory of them. The variation between the steps of each run is the
    measure of noise; only differences beyond it are claimed. What else changed, such as the schedule or the number of
    micro-batches, comes first.
    """
    from stagescope import api
    from stagescope.analysis.statistics.differences import RUNS

    skipped = parse_skipped(skip_steps) if skip_steps else None
    timelines = [
        read_paths([path], facts, align=align, run=run)
        for run, path in zip(RUNS, (before, after), strict=True)
    ]
    comparison = api.compare(timelines[0], timelines[1], skip_steps=skipped)
    errors = [warn_errors(timeline, run) for run, timeline in zip(RUNS, timelines, strict=True)]
    code = max(map(exit_code, timelines, errors))
    if html_path is not None:
        api.export_comparison(comparison, timelines[0], timelines[1], html_path, force=force)
    if json_path == STANDARD_OUTPUT:
        echo_data(json_text(api.comparison_json(comparison)), nl=False)
        return code
    if json_path is not None:
        write_json(api.comparison_json(comparison), json_path, force=force)
    _print(comparison, markdown=markdown)
    written = [path for path in (json_path, html_path) if path is not None]
    if written:
        echo(f"\nwrote {' and '.join(map(str, written))}")
    return code


def _print(comparison: Comparison, *, markdown: bool) -> None:
    from stagescope.reports.comparison_sentences import comparison_sentences
    from stagescope.reports.comparison_table import comparison_tables

    tables = comparison_tables(comparison, markdown=markdown)
    print_text("\n".join([*localized_list(comparison_sentences(comparison)), "", tables]))
    print_diagnostics(comparison.diagnostics)
