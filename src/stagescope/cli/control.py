"""``stagescope control``: change what a running training records, without restarting it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo
from stagescope.cli.finite_range import FiniteRange
from stagescope.record.control import DETAILS
from stagescope.vocabulary.number_ranges import compact_ranges, ranks_text
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.api import Answers

NO_DETAIL = "none"
EXIT_PARTIAL = 1


@click.command(
    "control",
    epilog="""
    \b
    Examples:
      stagescope control recordings --pause
      stagescope control recordings --resume
      stagescope control recordings --steps 1200:1205 --detail collectives
      stagescope control recordings --steps 1200:1203 --detail kernels
      stagescope control recordings --detail none
      stagescope control recordings --stacks
    """,
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--pause", is_flag=True, help="Stop recording; the training goes on.")
@click.option("--resume", is_flag=True, help="Record every step again.")
@click.option("--steps", metavar="A:B", help="Record only these steps, such as 1200:1205.")
@click.option(
    "--detail",
    "details",
    multiple=True,
    type=click.Choice((*DETAILS, NO_DETAIL)),
    help="Record these details, and no others; none for no details; may be repeated.",
)
@click.option("--stacks", is_flag=True, help="Have every process record the Python stacks of its threads.")
@click.option(
    "--wait",
    "patience_s",
    metavar="S",
    type=FiniteRange(min=0.0),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the answers of all ranks.",
)
def command(
    directory: Path, steps: str | None, details: Sequence[str], patience_s: float, **switches: bool
) -> int:
    """Change what a running training records, without restarting it.

    DIR is the directory of its recordings. The request is a file in it, which every process looks for twice a second;
    so only users who may write to DIR can control the recording. All ranks change at the same step, which
    none of them has begun yet, and answer in their recordings.

    The exit code is 1 if a rank that runs has refused the request or has not answered, or if no process has begun a
    step yet. If the training has ended, it is 0, and the request is for processes that record into DIR later.
    """
    from stagescope import api

    chosen = None if not details else [name for name in details if name != NO_DETAIL]
    answers = api.control(directory, steps=steps, details=chosen, patience_s=patience_s, **switches)
    for line in _lines(answers):
        echo(printable(line))
    is_answered = answers.accepted or answers.ended
    return EXIT_PARTIAL if answers.refused or answers.silent or not is_answered else 0


def _lines(answers: Answers) -> list[str]:
    request = answers.request
    lines = []
    changes = request.steps is not None or request.details is not None
    if answers.accepted:
        step = f", which takes effect at step {request.from_step}" if changes and request.from_step else ""
        lines.append(f"{ranks_text(answers.accepted)} accepted the request{step}")
    steps = sorted(set(answers.applied.values()))
    if len(steps) > 1:
        lines.append(f"they changed at different steps: {compact_ranges(steps)}")
    for reason in dict.fromkeys(answers.refused.values()):
        ranks = [rank for rank, given in answers.refused.items() if given == reason]
        lines.append(f"{ranks_text(ranks)} refused the request: {reason}")
    if not (answers.accepted or answers.refused or answers.silent or answers.ended):
        lines.append("no process has begun a step yet: the request waits for them")
    if answers.silent:
        lines.append(f"{ranks_text(answers.silent)} did not answer")
    if answers.ended:
        lines.append(f"{ranks_text(answers.ended)} ended before")
        if not (answers.accepted or answers.refused or answers.silent):
            lines.append("no process is running: the request is for those that record here later")
    return lines
