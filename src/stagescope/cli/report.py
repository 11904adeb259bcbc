"""``stagescope report``: the figures of a run, for people and for programs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.diagnostics import diagnostic_lines
from stagescope.cli.reading import exit_code, read_paths
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.errors import OutputError, compact_ranges

if TYPE_CHECKING:
    from stagescope.analyze import Report

STANDARD_OUTPUT = "-"


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
@click.option("--json", "json_path", metavar="FILE", help="Write the figures as JSON; - for standard output.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def command(paths: tuple[Path, ...], json_path: str | None, *, force: bool) -> int:
    """Print the figures of a run, or write them as JSON.

    The bubble is the idle part of each step's window: from the first start to the last end of any forward or
    backward job in the pipeline.
    """
    from stagescope import workflow
    from stagescope.analyze import to_json

    timeline = read_paths(paths)
    report = workflow.analyze(timeline)
    text = json.dumps(to_json(report), indent=2, allow_nan=False)
    if json_path == STANDARD_OUTPUT:
        click.echo(text)
        return exit_code(timeline)
    if json_path is not None:
        save_text(text + "\n", Path(json_path), force=force)
    _print(report)
    if json_path is not None:
        click.echo(f"wrote {json_path}")
    return exit_code(timeline)


def bubble_sentence(report: Report) -> str:
    """Return in one sentence how large the bubble is, of what, and which rank has most of it."""
    bubble = report.bubble
    if bubble.fraction is None or not report.ranks:
        return "No step with a forward or backward job was recorded, so there is no bubble to measure."
    steps = len(bubble.steps)
    over = f"step {bubble.steps[0]}" if steps == 1 else f"{steps} steps ({compact_ranges(bubble.steps)})"
    worst = max(report.ranks, key=lambda rank: rank.bubble_fraction)
    idle_ns = sum(rank.idle_ns for rank in report.ranks) // (len(report.ranks) * steps)
    return (
        f"The bubble is {bubble.fraction:.1%} of the pipeline window over {over}: on average a rank was "
        f"idle for {duration_text(idle_ns)} per step; rank {worst.rank} was idle most, {worst.bubble_fraction:.1%}."
    )


def _print(report: Report) -> None:
    from stagescope.view.tables import figures_table

    click.echo(bubble_sentence(report))
    click.echo(f"Fractions divide by the {report.bubble.denominator}.")
    click.echo()
    click.echo(figures_table(report))
    for line in diagnostic_lines(report.diagnostics):
        click.echo(line)


def save_text(text: str, path: Path, *, force: bool) -> None:
    """Write a file that is there whole or not at all.

    Raises OutputError when it exists and `force` is not given, and when the system refuses to write.
    """
    if path.exists() and not force:
        raise OutputError.exists(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from None
    finally:
        unfinished.unlink(missing_ok=True)
