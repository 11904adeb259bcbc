"""``stagescope clocks``: how the clocks of a run's machines were aligned, and how well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stagescope.cli.clock_lines import in_ascii
from stagescope.cli.console import echo_data
from stagescope.cli.json_file import json_text
from stagescope.cli.reading import (
    cached_paths,
    exit_code,
    read_cached,
    read_metrics,
    reading_options,
    warn_errors,
)
from stagescope.cli.run_paths import RUN_PATH
from stagescope.cli.show import supports_unicode

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.api import RunFacts
    from stagescope.clocks import ClockReport


@click.command(
    "clocks",
    epilog="""
    \b
    Examples:
      stagescope clocks recordings
      stagescope clocks logs/machine0 logs/machine1
      stagescope clocks recordings --json | jq '.machines[].offset_ns'
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=RUN_PATH)
@click.option("--json", "as_json", is_flag=True, help="Write JSON, and nothing else, to standard output.")
@reading_options
def command(paths: tuple[Path, ...], facts: RunFacts, *, as_json: bool) -> int:
    """Show how the clocks of all machines were aligned.

    For each machine: clock offset, drift, the guaranteed bound of the error and the number of observations. Then
    clocks that were set during the run, and observations that were excluded because their timestamps are inconsistent.
    """
    from stagescope import api

    source, facts = cached_paths(paths, facts)
    metrics = read_metrics(source, facts)
    timeline = read_cached(source, facts) if metrics is None else metrics.timeline
    clocks = api.clock_report(timeline)
    echo_data(_json_text(clocks) if as_json else _text(clocks))
    return exit_code(timeline, warn_errors(timeline if metrics is None else metrics))


def _json_text(clocks: ClockReport) -> str:
    from stagescope.api import clock_json

    return json_text(clock_json(clocks)).rstrip("\n")


def _text(clocks: ClockReport) -> str:
    from stagescope.reports.clocks import clocks_text

    text = clocks_text(clocks)
    return text if supports_unicode() else in_ascii(text)
