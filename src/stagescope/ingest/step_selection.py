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


def select_steps(timeline: Timeline, steps: StepRange | None) -> Timeline:
    """Return a timeline with the rows of some steps, None for all, and a diagnostic that states which were read.

    Rows without a step are kept if they began after the earlier steps of their rank had ended and before a later one
    began. Raises InputError if no row has one of the steps.
    """
    if steps is None:
        return timeline
    basis = timeline.steps if timeline.steps.height else timeline.spans.drop_nulls("step")
    known = basis["step"]
    if not known.len():
        raise InputError.no_known_steps(str(steps))
    windows = _windows(timeline, basis, steps)
    selected = replace(
        timeline,
        spans=_rows(timeline.spans, windows, steps, "start_ns"),
        steps=timeline.steps.filter(is_in_steps(steps)),
        counters=_rows(timeline.counters, windows, steps, "time_ns"),
        kernels=_rows(timeline.kernels, windows, steps, "start_ns"),
    )
    found = pl.concat([selected.spans["step"], selected.steps["step"]]).drop_nulls().n_unique()
    if not found:
        raise InputError.no_steps(str(steps), known.min(), known.max())
    text = f"only steps {steps} were read, as --steps states: {counted(found, 'step')}"
    return selected.with_diagnostics([Diagnostic("info", text, count=found, code="steps.selected")])


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


def _windows(timeline: Timeline, basis: pl.DataFrame, steps: StepRange) -> pl.DataFrame:
    """Return step_windows of all ranks; a rank without steps has the widest window of the others."""
    windows = step_windows(basis, steps)
    others = timeline.ranks.select("rank").join(windows, on="rank", how="anti")
    widest = windows.select(pl.min("first_ns"), pl.max("last_ns"))
    return pl.concat([windows, others.join(widest, how="cross")])


def _rows(frame: pl.DataFrame, windows: pl.DataFrame, steps: StepRange, time: str) -> pl.DataFrame:
    """Return the rows of the steps, and those without a step in the window of their rank."""
    is_after = (pl.col(time) >= pl.col("first_ns")).fill_null(value=True)
    is_before = (pl.col(time) < pl.col("last_ns")).fill_null(value=True)
    is_kept = is_after & is_before
    if "step" in frame.columns:
        is_kept = pl.when(pl.col("step").is_null()).then(is_kept).otherwise(is_in_steps(steps))
    placed = frame.join(windows, on="rank", how="left", maintain_order="left")
    return placed.filter(is_kept).drop("first_ns", "last_ns")
