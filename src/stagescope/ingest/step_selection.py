"""The steps of a run that a call reads: the result is as if only they had been recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.step_division import rows_in_steps, step_windows
from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import StepRange


class ShownSteps(NamedTuple):
    """What a run, or a part of it, shows about where some steps of it are.

    `windows` are those of step_windows, with the first and the last step of each rank as well. They are of the table of
    steps if it has a row (`are_marked`), else of the spans.
    """

    windows: pl.DataFrame
    are_marked: bool


class StepWindows(NamedTuple):
    """When the steps before some steps of a run had ended on each rank, and when those after them began.

    `first` and `last` are the first and the last step that the run has.
    """

    table: pl.DataFrame
    first: int
    last: int

    def of(self, ranks: pl.Series) -> StepWindows:
        """Return the windows of some ranks."""
        return self._replace(table=self.table.filter(pl.col("rank").is_in(ranks.implode())))


def select_steps(timeline: Timeline, steps: StepRange | None) -> Timeline:
    """Return a timeline with the rows of some steps, None for all, and a diagnostic that states which were read.

    Rows without a step are kept if they began after the earlier steps of their rank had ended and before a later one
    began. Raises InputError if no row has one of the steps.
    """
    if steps is None:
        return timeline
    windows = windows_of_run([shown_steps(timeline, steps)], timeline.ranks, steps)
    selected = rows_of_steps(timeline, steps, windows)
    found = pl.concat([selected.spans["step"], selected.steps["step"]]).drop_nulls().n_unique()
    return selected.with_diagnostics([note_of_selected(found, steps, windows)])


def shown_steps(timeline: Timeline, steps: StepRange) -> ShownSteps:
    """Return what a timeline shows about where some steps are."""
    are_marked = timeline.steps.height > 0
    basis = timeline.steps if are_marked else timeline.spans.drop_nulls("step")
    numbers = basis.group_by("rank").agg(first=pl.min("step"), last=pl.max("step"))
    return ShownSteps(step_windows(basis, steps).join(numbers, on="rank"), are_marked)


def windows_of_run(shown: Sequence[ShownSteps], ranks: pl.DataFrame, steps: StepRange) -> StepWindows:
    """Return the windows of all `ranks` of a run, given what its parts show: some ranks, or some steps of these.

    A rank without steps has the widest window of the others. Raises InputError if the run has no step.
    """
    are_marked = any(each.are_marked for each in shown)
    known = pl.concat(each.windows for each in shown if each.are_marked == are_marked)
    if known.is_empty():
        raise InputError.no_known_steps(str(steps))
    windows = known.group_by("rank").agg(pl.max("first_ns"), pl.min("last_ns"))
    others = ranks.select("rank").join(windows, on="rank", how="anti")
    widest = windows.select(pl.min("first_ns"), pl.max("last_ns"))
    first, last = known.select(pl.min("first"), pl.max("last")).row(0)
    return StepWindows(pl.concat([windows, others.join(widest, how="cross")]), first, last)


def rows_of_steps(timeline: Timeline, steps: StepRange, windows: StepWindows) -> Timeline:
    """Return a timeline with the rows of some steps, and those without a step in the window of their rank."""
    return replace(
        timeline,
        spans=rows_in_steps(timeline.spans, windows.table, steps, "start_ns"),
        steps=timeline.steps.filter(is_in_steps(steps)),
        counters=rows_in_steps(timeline.counters, windows.table, steps, "time_ns"),
        kernels=rows_in_steps(timeline.kernels, windows.table, steps, "start_ns"),
    )


def note_of_selected(found: int, steps: StepRange, windows: StepWindows) -> Diagnostic:
    """Return the diagnostic that states which steps were read; `found` is their number. Raises InputError for 0."""
    if not found:
        raise InputError.no_steps(str(steps), windows.first, windows.last)
    text = f"only steps {steps} were read, as --steps states: {counted(found, 'step')}"
    return Diagnostic("info", text, count=found, code="steps.selected")
