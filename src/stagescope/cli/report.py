"""``stagescope report``: the figures of a run, for people and for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.reading import exit_code, read_paths, reading_options
from stagescope.cli.show import print_figures, speaks_unicode
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.errors import OutputError
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from stagescope.analyze import Report
    from stagescope.ingest.reader import ReadOptions

STANDARD_OUTPUT = Path("-")


@click.command(
    "report",
    epilog="""
    \b
    Examples:
      stagescope report recordings
      stagescope report recordings --json report.json
      stagescope report recordings --json - | jq .bubble.fraction
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write the figures as JSON; - writes them, and nothing else, to standard output.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@reading_options
def command(paths: tuple[Path, ...], options: ReadOptions, json_path: Path | None, *, force: bool) -> int:
    """Print the figures of a run, or write them as JSON.

    The bubble is the idle part of each step's window, which reaches from the first start to the last end of
    any forward or backward job in the pipeline.
    """
    from stagescope import workflow

    timeline = read_paths(paths, options)
    report = workflow.analyze(timeline)
    if json_path == STANDARD_OUTPUT:
        click.echo(_json_text(report), nl=False)
        return exit_code(timeline)
    if json_path is not None:
        write_report(report, json_path, force=force)
    sentence = bubble_sentence(report)
    click.echo(sentence if speaks_unicode() else sentence.replace("µ", "u"))
    click.echo(f"Fractions divide by the {report.bubble.denominator}.")
    click.echo()
    print_figures(report)
    if json_path is not None:
        click.echo(f"\nwrote {json_path}")
    return exit_code(timeline)


def bubble_sentence(report: Report) -> str:
    """Return in one sentence how large the bubble is, of what, and which rank has most of it."""
    from stagescope.view.tables import percent_text

    bubble = report.bubble
    if bubble.fraction is None or not report.ranks:
        return "No step with a forward or backward job was recorded, so there is no bubble to measure."
    steps = len(bubble.steps)
    over = f"step {bubble.steps[0]}" if steps == 1 else f"{steps} steps ({compact_ranges(bubble.steps)})"
    idle_ns = sum(rank.idle_ns for rank in report.ranks) // (len(report.ranks) * steps)
    most = max(report.ranks, key=lambda rank: rank.bubble_fraction)
    percent = percent_text(most.bubble_fraction)
    alike = all(percent_text(rank.bubble_fraction) == percent for rank in report.ranks)
    return (
        f"The bubble is {percent_text(bubble.fraction)} of the pipeline window over {over}: "
        f"on average a rank was idle for {duration_text(idle_ns)} per step, "
        + ("all ranks alike." if alike else f"rank {most.rank} most of all: {percent} of its window.")
    )


def write_report(report: Report, path: Path, *, force: bool = False) -> None:
    """Write the report as JSON (analyze/report_json.py says how) to a file that is whole or not there.

    Raises OutputError when it exists and `force` is not given, and when the system refuses to write.
    """
    if path.exists() and not force:
        raise OutputError.exists(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(_json_text(report), encoding="utf-8")
        unfinished.replace(path)
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from None
    finally:
        unfinished.unlink(missing_ok=True)


def _json_text(report: Report) -> str:
    from stagescope.analyze import to_json

    return json.dumps(to_json(report), indent=2, allow_nan=False) + "\n"
