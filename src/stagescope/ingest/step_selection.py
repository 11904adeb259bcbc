"""The steps of a run that a call reads: the result is as if only they had been recorded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.step_division import rows_in_steps, step_windows
from stagescope.model.step_ranges import is_in_steps
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import StepRange


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
        spans=rows_in_steps(timeline.spans, windows, steps, "start_ns"),
        steps=timeline.steps.filter(is_in_steps(steps)),
        counters=rows_in_steps(timeline.counters, windows, steps, "time_ns"),
        kernels=rows_in_steps(timeline.kernels, windows, steps, "start_ns"),
    )
    found = pl.concat([selected.spans["step"], selected.steps["step"]]).drop_nulls().n_unique()
    if not found:
        raise InputError.no_steps(str(steps), known.min(), known.max())
    text = f"only steps {steps} were read, as --steps states: {counted(found, 'step')}"
    return selected.with_diagnostics([Diagnostic("info", text, count=found, code="steps.selected")])


def _windows(timeline: Timeline, basis: pl.DataFrame, steps: StepRange) -> pl.DataFrame:
    """Return step_windows of all ranks; a rank without steps has the widest window of the others."""
    windows = step_windows(basis, steps)
    others = timeline.ranks.select("rank").join(windows, on="rank", how="anti")
    widest = windows.select(pl.min("first_ns"), pl.max("last_ns"))
    return pl.concat([windows, others.join(widest, how="cross")])
