"""``stagescope paddle``: the output of Paddle's own pipeline profiler, with its names and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.clock_lines import print_aligned, print_unaligned, without_clock_line
from stagescope.cli.console import echo
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.number_lists import parse_ranges
from stagescope.cli.reading import exit_code, reading_options, warn_partial
from stagescope.cli.show import supports_unicode
from stagescope.cli.written import written_text
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.number_ranges import steps_text

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.api import RunFacts
    from stagescope.model import Timeline

RAW_FILES = (
    "The files contain each machine's raw timestamps, as Paddle's do; stagescope export writes aligned ones."
)


@click.command(
    "paddle",
    epilog="""
    \b
    Examples:
      stagescope paddle --log_dir log
      stagescope paddle --devices 0,1,2,3 --log_dir log
      stagescope paddle --devices 0-7 --log_dir logs --multi_machine -o profile
    """,
)
@click.option(
    "--log_dir", "--log-dir", "log_dir", metavar="DIR", required=True, type=click.Path(path_type=Path),
    help="Directory with workerlog.0, workerlog.1, ...",
)  # fmt: skip
@click.option("--devices", metavar="LIST", help="Devices to show, such as 0,1,2,3 or 0-3 (default: all).")
@click.option(
    "--multi_machine", "--multi-machine", "multi_machine", is_flag=True,
    help="DIR contains one directory of logs per machine, such as machine0, machine1.",
)  # fmt: skip
@click.option(
    "-o",
    "--output",
    metavar="OUTDIR",
    type=click.Path(path_type=Path),
    help="Output directory (default: DIR).",
)
@reading_options
def command(
    log_dir: Path, devices: str | None, output: Path | None, facts: RunFacts, *, multi_machine: bool
) -> int:
    """Write Paddle's pipeline_profile.json and pipeline_profile_perfetto.json from worker logs.

    Takes the arguments of paddle.distributed.auto_parallel.static.profiler_helper_static and overwrites its two
    files. Paddle need not be installed.
    """
    from stagescope import api

    chosen = None if devices is None else parse_ranges(devices)
    timeline = api.read_paddle_logs(log_dir, chosen, multi_machine=multi_machine, **facts)
    warn_partial(timeline)
    aligned = api.align_timeline(timeline)
    clocks = api.clock_report(aligned)
    print_unaligned(aligned, ascii_only=not supports_unicode())
    # The files contain what Paddle's script would write: every machine's raw timestamps.
    written = api.export_paddle_profile(timeline, output or log_dir)
    for one in written:
        echo(written_text(one))
    echo(_summary(aligned))
    print_aligned(clocks, ascii_only=not supports_unicode())
    if clocks.machines:
        echo(RAW_FILES)
    print_diagnostics(without_clock_line(api.sorted_diagnostics(aligned)))
    return exit_code(timeline)


def _summary(timeline: Timeline) -> str:
    """Return steps, ranks and the bubble in one line."""
    from stagescope import api
    from stagescope.vocabulary.ratios import percent_text

    report: Report = api.analyze(timeline)
    steps = steps_text(report.steps["step"])
    bubble = report.bubble
    # `timeline.ranks` has the ranks whose logs could not be read, too.
    ranks = counted(timeline.spans["rank"].n_unique(), "rank")
    if bubble.fraction is None:
        return f"{ranks}, bubble unknown, because {bubble.unknown_because}"
    return f"{steps}, {ranks}, bubble {percent_text(bubble.fraction)} of the window"
