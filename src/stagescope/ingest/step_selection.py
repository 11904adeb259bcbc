"""The steps of a run that a call reads: the result is as if only they had been recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagescope.model import Timeline


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
        spans=_rows(timeline.spans, windows.table, steps, "start_ns"),
        steps=timeline.steps.filter(is_in_steps(steps)),
        counters=_rows(timeline.counters, windows.table, steps, "time_ns"),
        kernels=_rows(timeline.kernels, windows.table, steps, "start_ns"),
    )


def note_of_selected(found: int, steps: StepRange, windows: StepWindows) -> Diagnostic:
    """Return the diagnostic that states which steps were read; `found` is their number. Raises InputError for 0."""
    if not found:
        raise InputError.no_steps(str(steps), windows.first, windows.last)
    text = f"only steps {steps} were read, as --steps states: {counted(found, 'step')}"
    return Diagnostic("info", text, count=found, code="steps.selected")


def step_windows(basis: pl.DataFrame, steps: StepRange) -> pl.DataFrame:
    """Return when the steps before the chosen ones had ended on each rank, and when those after them began.

    `basis` has rank, step, start_ns and end_ns, as the table of steps. Columns: rank, first_ns and last_ns; null is for
    no such step.
    """
    return basis.group_by("rank").agg(
        first_ns=pl.col("end_ns").filter(pl.col("step") < steps.start).max(),
        last_ns=pl.col("start_ns").filter(pl.col("step") >= steps.stop).min(),
    )


NO_BOUNDS = (-(2**62), 2**62)
"""Of a range whose steps are not in the table of steps: all spans of the steps next to it are needed."""


class NeededSpans(NamedTuple):
    """A range of steps, and which spans of the steps before and after it are needed with them.

    They are those that end after `since_ns`, when the first step of the range begins, and those that start before
    `until_ns`, when its last step has ended; and the first action of every rank in the step after it.
    """

    steps: StepRange
    since_ns: int
    until_ns: int


def needed_spans(steps: pl.DataFrame, ranges: Sequence[StepRange]) -> list[NeededSpans]:
    """Return which spans are needed with each of several ranges; `steps` is the table of steps of the run."""
    begins = steps.group_by("step").agg(pl.min("start_ns"), pl.max("end_ns"))
    found = []
    for each in ranges:
        own = begins.filter(is_in_steps(each)).select(pl.min("start_ns"), pl.max("end_ns")).row(0)
        since_ns, until_ns = (
            bound if bound is not None else none for bound, none in zip(own, NO_BOUNDS, strict=True)
        )
        found.append(NeededSpans(each, since_ns, until_ns))
    return found


def divide_steps(
    spans: pl.DataFrame, needed: Sequence[NeededSpans], steps: Callable[[], pl.DataFrame]
) -> Iterator[pl.DataFrame]:
    """Yield the spans of each of several ranges of steps, with those of the steps next to it that are needed.

    `steps` loads the table of steps of the run, which shows where spans without a step belong, as in select_steps.
    """
    of_step = {
        step: rows for (step,), rows in spans.partition_by("step", as_dict=True, maintain_order=True).items()
    }
    stepless = of_step.pop(None, spans.clear())
    basis = steps() if stepless.height else None
    is_action = pl.col("kind").is_in(ACTION_KINDS)
    begins = is_action & (pl.col("start_ns") == pl.col("start_ns").filter(is_action).min().over("rank"))
    for own, since_ns, until_ns in needed:
        earlier, later = (
            [step for step in of_step if step < own.start],
            [step for step in of_step if step >= own.stop],
        )
        before = of_step[max(earlier)] if earlier else spans.clear()
        after = of_step[min(later)] if later else spans.clear()
        found = [
            *(rows for step, rows in of_step.items() if step in own),
            before.filter(pl.col("end_ns") > since_ns),
            after.filter((pl.col("start_ns") < until_ns) | begins),
        ]
        if basis is not None:
            around = StepRange(max(0, own.start - 1), own.stop + 1)
            found.append(_rows(stepless, step_windows(basis, around), own, "start_ns"))
        yield pl.concat(found)


def _rows(frame: pl.DataFrame, windows: pl.DataFrame, steps: StepRange, time: str) -> pl.DataFrame:
    """Return the rows of the steps, and those without a step in the window of their rank."""
    is_after = (pl.col(time) >= pl.col("first_ns")).fill_null(value=True)
    is_before = (pl.col(time) < pl.col("last_ns")).fill_null(value=True)
    is_kept = is_after & is_before
    if "step" in frame.columns:
        is_kept = pl.when(pl.col("step").is_null()).then(is_kept).otherwise(is_in_steps(steps))
    placed = frame.join(windows, on="rank", how="left", maintain_order="left")
    return placed.filter(is_kept).drop("first_ns", "last_ns")
