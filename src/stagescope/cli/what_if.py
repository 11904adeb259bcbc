"""``stagescope what-if``: how long a step would take if something about the run were different."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.change_words import parse_change
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.cli.reading import align_option, exit_code, read_paths, reading_options
from stagescope.cli.show import speaks_unicode

if TYPE_CHECKING:
    from stagescope.analysis.prediction.changes import Change, Combination
    from stagescope.analysis.prediction.what_if import WhatIf
    from stagescope.ingest.reader import ReadOptions


@click.command(
    "what-if",
    epilog="""
    \b
    Examples:
      stagescope what-if recordings
      stagescope what-if recordings --faster stage=3:10% --slower rank=2,kind=backward:5%
      stagescope what-if recordings --balanced --no-communication --together
      stagescope what-if recordings --to-schedule zb-h1 --to-schedule interleaved
    """,
)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--faster",
    metavar="WHAT:N%",
    multiple=True,
    help="Actions of stage=S, rank=R or kind=K take N % less time; without WHAT all of them.",
)
@click.option("--slower", metavar="WHAT:N%", multiple=True, help="The same, N % more time.")
@click.option("--balanced", is_flag=True, help="Every stage costs the mean over the stages.")
@click.option("--no-communication", is_flag=True, help="Transfers take no time.")
@click.option(
    "--to-schedule",
    "schedules",
    metavar="NAME",
    multiple=True,
    help="The actions run in another order (stagescope simulate --list names them).",
)
@click.option("--together", is_flag=True, help="Also predict all of it at once, once for every schedule.")
@json_options("the predictions")
@align_option
@reading_options
def command(
    paths: tuple[Path, ...],
    options: ReadOptions,
    json_path: Path | None,
    *,
    force: bool,
    align: bool,
    together: bool,
    **changes: tuple[str, ...] | bool,
) -> int:
    """Predict how long a step would take if something about the run were different.

    Every option is a prediction of its own; without any, balanced stages and transfers without time are tried.
    Step times are the mean over the steps in the report's totals, of the longest pipeline each.
    """
    from stagescope import api as workflow

    asked = _changes(**changes)  # type: ignore[arg-type]  # click gives each option its own type
    read = read_paths(paths, options, align=align)
    predicted = workflow.what_if(read.timeline, _combinations(asked, together=together))
    # A prediction that could not be made was asked for in vain: its note says why.
    code = exit_code(read.timeline) or int(predicted.table["predicted_step_ns"].has_nulls())
    if json_path == STANDARD_OUTPUT:
        click.echo(json_text(_plain(predicted)), nl=False)
        return code
    if json_path is not None:
        write_json(_plain(predicted), json_path, force=force)
    _print(predicted)
    if json_path is not None:
        click.echo(f"\nwrote {json_path}")
    return code


def _changes(
    *,
    faster: tuple[str, ...],
    slower: tuple[str, ...],
    balanced: bool,
    no_communication: bool,
    schedules: tuple[str, ...],
) -> list[Change]:
    """Return what was asked for, in a fixed order; without anything, what costs nothing to ask."""
    from stagescope.analysis.prediction.changes import EqualStages, FreeTransfers, OtherSchedule
    from stagescope.schedules.spellings import known_schedule

    nothing = not (faster or slower or balanced or no_communication or schedules)
    return [
        *(parse_change("--faster", text) for text in faster),
        *(parse_change("--slower", text) for text in slower),
        *([EqualStages()] if balanced or nothing else []),
        *([FreeTransfers()] if no_communication or nothing else []),
        *(OtherSchedule(known_schedule(name) or name) for name in schedules),
    ]


def _combinations(asked: list[Change], *, together: bool) -> list[Combination]:
    """Return every change alone, and if wanted all of them at once: once per schedule, as only one can run."""
    from stagescope.analysis.prediction.changes import OtherSchedule

    alone: list[Combination] = [(change,) for change in asked]
    if not together:
        return alone
    costs = [change for change in asked if not isinstance(change, OtherSchedule)]
    orders = [[change] for change in asked if isinstance(change, OtherSchedule)]
    return alone + [(*costs, *order) for order in orders or [[]] if len(costs) + len(order) > 1]


def _plain(predicted: WhatIf) -> dict[str, object]:
    """Return the predictions as plain data: times in nanoseconds, fractions 0 to 1."""
    from dataclasses import asdict

    return {
        "schema": 1,
        "predictions": predicted.table.to_dicts(),
        "diagnostics": [asdict(row) for row in predicted.diagnostics],
    }


def _print(predicted: WhatIf) -> None:
    from stagescope.reports.prediction_table import what_if_text
    from stagescope.vocabulary.durations import duration_text

    if predicted.table.is_empty() or not predicted.table["measured_step_ns"][0]:
        click.echo("No step with a forward or backward action was recorded, so there is nothing to predict.")
        return
    measured = duration_text(round(predicted.table["measured_step_ns"][0]))
    text = "\n".join(
        [
            f"Measured: {measured} per step, the mean of the longest pipeline's window. Gains are shares of it.",
            "",
            what_if_text(predicted.table),
        ]
    )
    click.echo(text if speaks_unicode() else text.replace("µ", "u"))
    print_diagnostics(predicted.diagnostics)
