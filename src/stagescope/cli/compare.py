"""``stagescope compare``: which parts of a run got slower or faster, and whether the difference exceeds noise."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from stagescope.cli.console import echo, echo_data
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.cli.reading import (
    TaskBar,
    align_option,
    cached_paths,
    exit_code,
    read_cached,
    reading_options,
    skip_steps_option,
    warn_errors,
    warn_partial,
)
from stagescope.cli.run_paths import RUN_PATH
from stagescope.cli.show import print_text
from stagescope.vocabulary.language import localized_list
from stagescope.vocabulary.steps import parse_skipped

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from stagescope.analysis.statistics.comparison import ComparedRun, Comparison
    from stagescope.api import RunFacts
    from stagescope.vocabulary.steps import Skipped


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
    # A page of both runs has all of their spans, and other totals than those of the saved reports need them.
    is_whole = html_path is not None or skipped is not None
    compared = []
    for name, path in zip(RUNS, (before, after), strict=True):
        run = _Run(name, *cached_paths([path], facts, align=align), align)
        compared.append((None if is_whole else _gather_stored(run)) or _gather_read(run, skipped))
    comparison = api.compare_gathered(*compared)
    timelines = [each.report.timeline for each in compared]
    errors = [warn_errors(each.report, name) for name, each in zip(RUNS, compared, strict=True)]
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


class _Run(NamedTuple):
    """One of the two runs: how messages name it, what cached_paths returned for it, and whether clocks are aligned."""

    name: str
    paths: Sequence[str | os.PathLike[str]]
    facts: RunFacts
    align: bool


def _gather_stored(run: _Run) -> ComparedRun | None:
    """Return what is compared of a run from its saved report and its files; None for a run that has to be read."""
    from stagescope import api

    if not run.align:
        return None
    with ExitStack() as shown:
        analyzed, read = TaskBar(shown, "analyzing the run"), TaskBar(shown, "reading actions and messages")
        found = api.gather_stored_run(*run.paths, on_progress=analyzed.show, on_read=read.show, **run.facts)
    if found is not None:
        warn_partial(found.report.timeline, run.name)
    return found


def _gather_read(run: _Run, skipped: Skipped | None) -> ComparedRun:
    """Return the same of a run that is read as a whole, without `skipped` steps."""
    from stagescope import api

    timeline = read_cached(run.paths, run.facts, align=run.align, run=run.name)
    return api.gather_timeline(timeline, skip_steps=skipped)


def _print(comparison: Comparison, *, markdown: bool) -> None:
    from stagescope.reports.comparison_sentences import comparison_sentences
    from stagescope.reports.comparison_table import comparison_tables

    tables = comparison_tables(comparison, markdown=markdown)
    print_text("\n".join([*localized_list(comparison_sentences(comparison)), "", tables]))
    print_diagnostics(comparison.diagnostics)
