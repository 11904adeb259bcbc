"""``stagescope what-if``: the predicted step time if stages, links or the schedule changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stagescope.cli.change_words import parse_change
from stagescope.cli.console import echo, echo_data
from stagescope.cli.diagnostics import print_diagnostics
from stagescope.cli.json_file import STANDARD_OUTPUT, json_options, json_text, write_json
from stagescope.cli.reading import (
    align_option,
    cached_paths,
    exit_code,
    read_cached,
    reading_options,
    warn_errors,
    warn_partial,
    while_analyzing,
)
from stagescope.cli.run_paths import RUN_PATH
from stagescope.cli.show import print_text
from stagescope.vocabulary.language import localized

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.analysis import Report
    from stagescope.analysis.prediction.changes import Change, Combination
    from stagescope.analysis.prediction.what_if import WhatIf
    from stagescope.api import RunFacts, SampledRun
    from stagescope.model import Timeline


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
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=RUN_PATH)
@click.option(
    "--faster",
    metavar="WHAT:N%",
    multiple=True,
    help="Actions of stage=S, rank=R or kind=K take N % less time; without WHAT, all actions.",
)
@click.option("--slower", metavar="WHAT:N%", multiple=True, help="Like --faster, but N % more time.")
@click.option("--balanced", is_flag=True, help="Every stage has the mean cost of all stages.")
@click.option("--no-communication", is_flag=True, help="Transfers take no time.")
@click.option(
    "--to-schedule",
    "schedules",
    metavar="NAME",
    multiple=True,
    help="Another schedule (stagescope simulate --list lists the names).",
)
@click.option("--together", is_flag=True, help="Also predict all changes at once, once per schedule.")
@json_options("the predictions")
@align_option
@reading_options
def command(
    paths: tuple[Path, ...],
    facts: RunFacts,
    json_path: Path | None,
    *,
    force: bool,
    align: bool,
    together: bool,
    **changes: tuple[str, ...] | bool,
) -> int:
    """Predict the step time if stages, links or the schedule changed.

    Each option is predicted separately; without any, --balanced and --no-communication are. Step times are means
    over the steps in the totals of the report, each of its slowest pipeline.
    """
    from stagescope import api

    asked = _changes(**changes)  # type: ignore[arg-type]  # click gives each option its own type
    combinations = _combinations(asked, together=together)
    source, facts = cached_paths(paths, facts, align=align)
    sampled = _read_sample(source, facts) if align else None
    run: Timeline | Report
    if sampled is None:
        run = timeline = read_cached(source, facts, align=align)
        predicted = api.what_if(timeline, combinations)
    else:
        run, timeline = sampled.report, sampled.report.timeline
        predicted = api.what_if_of_sample(sampled, combinations)
    # A missing prediction is a partial result; its note has the reason.
    code = exit_code(timeline, warn_errors(run)) or int(predicted.table["predicted_step_ns"].has_nulls())
    if json_path == STANDARD_OUTPUT:
        echo_data(json_text(api.what_if_json(predicted)), nl=False)
        return code
    if json_path is not None:
        write_json(api.what_if_json(predicted), json_path, force=force)
    _print(predicted)
    if json_path is not None:
        echo(f"\nwrote {json_path}")
    return code


def _read_sample(paths: Sequence[str | os.PathLike[str]], facts: RunFacts) -> SampledRun | None:
    """Return the sample of a stored run that is too large to be analyzed at once, with warnings; None for others."""
    from stagescope import api

    found = while_analyzing(lambda show: api.sample_stored_run(*paths, on_progress=show, **facts))
    if found is not None:
        warn_partial(found.report.timeline)
    return found


def _changes(
    *,
    faster: tuple[str, ...],
    slower: tuple[str, ...],
    balanced: bool,
    no_communication: bool,
    schedules: tuple[str, ...],
) -> list[Change]:
    """Return the requested changes in a fixed order; without any, the two that need no parameter."""
    from stagescope.api import EqualStages, FreeTransfers, OtherSchedule
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
    """Return each change separately and, if `together`, all of them at once per schedule: a step has only one."""
    from stagescope.api import OtherSchedule

    separate: list[Combination] = [(change,) for change in asked]
    if not together:
        return separate
    costs = [change for change in asked if not isinstance(change, OtherSchedule)]
    orders = [[change] for change in asked if isinstance(change, OtherSchedule)]
    return separate + [(*costs, *order) for order in orders or [[]] if len(costs) + len(order) > 1]


def _print(predicted: WhatIf) -> None:
    from stagescope.reports.prediction_table import what_if_text
    from stagescope.vocabulary.durations import duration_text

    if predicted.table.is_empty() or not predicted.table["measured_step_ns"][0]:
        echo("Nothing to predict: no step with a forward or backward action was recorded.")
        return
    measured = duration_text(round(predicted.table["measured_step_ns"][0]))
    head = f"Measured step: {measured}, the mean window of the slowest pipeline. Gains are fractions of it."
    print_text(f"{localized(head)}\n\n{what_if_text(predicted.table)}")
    print_diagnostics(predicted.diagnostics)
