"""``stagescope hang``: which rank holds up a training that does not go on, and which ranks wait for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo, echo_data
from stagescope.cli.hang_options import after_option
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.vocabulary.number_ranges import ranks_text
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.api import HangReport

EXIT_HUNG = 3
MOST_STACKS = 8
"""Ranks whose stacks are printed: those that hold up the training first."""


@click.command(
    "hang",
    epilog="""
    \b
    Examples:
      stagescope hang recordings
      stagescope hang recordings --stacks
      stagescope hang recordings --after 60 || notify "training hangs"
      stagescope hang recordings --json - | jq .culprits
    """,
)
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@after_option
@click.option("--stacks", is_flag=True, help="Ask all processes for the Python stacks of their threads.")
@json_options("the result")
def command(
    directories: Sequence[Path], after: float, json_path: Path | None, *, stacks: bool, force: bool
) -> int:
    """Report which rank holds up a training that does not go on, and what the others wait for.

    DIR is the directory of its recordings, while it runs or afterwards. A process that has recorded nothing for two
    seconds writes what it is doing: the action, transfer or collective, and its stack. Nothing is needed for that, and
    nothing is sent to the training, except with --stacks.

    The exit code is 3 if the training hangs, and 0 if it is running or over.
    """
    from stagescope import api

    report = api.find_hang(*directories, quiet_after_s=after, stacks=stacks)
    if json_path is not None:
        if json_path == STANDARD_OUTPUT:
            echo_data(json_text(api.hang_json(report)), nl=False)
        else:
            write_json(api.hang_json(report), json_path, force=force)
    if json_path != STANDARD_OUTPUT:
        _print(report, stacks=stacks)
    return EXIT_HUNG if report.is_hung else 0


def _print(report: HangReport, *, stacks: bool) -> None:
    from stagescope import api
    from stagescope.reports.aligned import aligned

    for sentence in api.hang_sentences(report):
        echo(printable(sentence))
    if report.missing:  # those that may still be starting are in the sentences
        echo(f"No recording of {ranks_text(report.missing)}.")
    echo()
    rows = [tuple(map(printable, row)) for row in api.hang_rows(report)]
    for line in aligned(("rank", "condition", "step", "last"), rows, (1, 3)):
        echo_data(line)
    if len(rows) < len(report.states):
        echo(f"... and {len(report.states) - len(rows)} more ranks: --json lists all")
    if report.is_hung or stacks:
        _print_stacks(report, stacks=stacks)


def _print_stacks(report: HangReport, *, stacks: bool) -> None:
    """Print the stacks of the ranks that hold up the training; with `stacks` those of other ranks and threads too."""
    culprits = [state for state in report.states if state.rank in report.culprits]
    others = [state for state in report.states if state.rank not in report.culprits]
    chosen = (culprits + (others if stacks else []))[:MOST_STACKS]
    for state in chosen:
        for name, stack in {"training thread": state.stack, **(state.threads if stacks else {})}.items():
            if stack:
                echo()
                echo(printable(f"rank {state.rank}, {name}, innermost call first:"))
            for frame in stack:
                echo_data(f"  {printable(frame)}")
