"""Analyze one run, compare two, and predict the step time of changes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.analysis import (
    Report,
    build_explained_report,
    build_report,
    errors_first,
    to_json,
    unexplained,
)
from stagescope.analysis.completeness.unaligned import keep_aligned_pipelines, unaligned_ranks
from stagescope.analysis.explanation import explain, find_least_cost_ns
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.prediction.changes import (
    EqualStages,
    FreeTransfers,
    OtherSchedule,
    Slower,
    combinations_of,
)
from stagescope.analysis.prediction.slow_devices import find_slow_devices
from stagescope.analysis.prediction.what_if import predict_steps
from stagescope.analysis.sampled_steps import sample_diagnostics
from stagescope.analysis.statistics.comparison import compare_totals, gather_run
from stagescope.analysis.statistics.comparison_json import comparison_json
from stagescope.analysis.statistics.stragglers import DEFAULT_LIMITS, find_stragglers
from stagescope.api.reading import clock_json, clock_report
from stagescope.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.prediction.changes import Change, Combination
    from stagescope.analysis.prediction.what_if import WhatIf
    from stagescope.analysis.statistics.comparison import ComparedRun, Comparison
    from stagescope.analysis.statistics.stragglers import Stragglers
    from stagescope.api.sampled_runs import SampledRun
    from stagescope.exporters.stored_run import Stored
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.vocabulary.steps import Skipped

__all__ = [
    "EqualStages",
    "FreeTransfers",
    "OtherSchedule",
    "Slower",
    "analyze",
    "compare",
    "compare_gathered",
    "comparison_json",
    "find_errors",
    "gather_timeline",
    "report_json",
    "sorted_diagnostics",
    "unaligned_ranks",
    "what_if",
    "what_if_json",
    "what_if_of_sample",
]

DIFFERENT_UNITS = (
    "a simulation in units of cost cannot be compared with a run in time; simulate with costs such as 2.5 ms"
)


def analyze(
    timeline: Timeline,
    *,
    explain: bool = True,
    layers: int | Sequence[int] = (),
    skip_steps: Skipped | None = None,
) -> Report:
    """Return the Report of a timeline: where the time went, why, and what would reduce the step time.

    With `explain=False` the report has only the times per step and rank, without causes, verdict and improvements,
    and takes less time to compute. `layers` are the transformer layers of every stage in the order of the model, or
    their total if all stages have the same number: with them, the proposed division of the layers is a layout.
    `skip_steps` are left out of the totals: a number N is the first N steps of the run, and a range or collection has
    the numbers of steps.

    >>> from stagescope.model import empty_timeline
    >>> report = analyze(empty_timeline())
    >>> report.steps.height, report.bubble.fraction, report.verdict.findings
    (0, None, ())
    """
    if not explain:
        return build_report(timeline, skip_steps)
    counts = (layers,) if isinstance(layers, int) else tuple(layers)
    return build_explained_report(timeline, counts, skip_steps)


def compare(before: Timeline, after: Timeline, *, skip_steps: Skipped | None = None) -> Comparison:
    """Return how run `after` differs from run `before`, and which differences exceed the noise of the steps.

    Only steps in the totals of the two reports are compared; diagnostics name the others. `skip_steps` are left out of
    both runs, as in `analyze`. Raises UsageError if one of them is a simulation in units of cost and the other is not.

    >>> from stagescope.model import empty_timeline
    >>> compare(empty_timeline(), empty_timeline()).table.height
    0
    """
    one, other = (gather_timeline(each, skip_steps=skip_steps) for each in (before, after))
    return compare_gathered(one, other)


def gather_timeline(timeline: Timeline, *, skip_steps: Skipped | None = None) -> ComparedRun:
    """Return what `compare` compares of a timeline; `gather_stored_run` returns it for a stored run."""
    return gather_run(timeline, skip_steps)


def compare_gathered(before: ComparedRun, after: ComparedRun) -> Comparison:
    """Return what `compare` does for two runs, and raise the same, given what is compared of them."""
    has_both = before.spans.actions.height and after.spans.actions.height
    if has_both and before.report.in_cost_units != after.report.in_cost_units:
        raise UsageError(DIFFERENT_UNITS)
    return compare_totals(before, after)


def what_if(timeline: Timeline, changes: Change | Sequence[Change | Combination]) -> WhatIf:
    """Return the predicted step time for each change.

    `changes` is one change (Slower, EqualStages, FreeTransfers or OtherSchedule), or several of them, each predicted
    separately; the changes of a tuple in a list are made together. Only steps in the totals of the report count.

    Raises TypeError for anything that is not a change, and ScheduleError for an unknown schedule or one that does not
    support the recorded numbers of ranks and micro-batches.

    >>> from stagescope.api import EqualStages, FreeTransfers, simulate
    >>> run = simulate("1f1b", ranks=2, microbatches=4).timeline
    >>> what_if(run, [EqualStages(), (EqualStages(), FreeTransfers())]).table["change"].to_list()
    ['all stages equal', 'all stages equal; transfers take no time']
    """
    combinations = combinations_of(changes)
    aligned = keep_aligned_pipelines(timeline)
    actions = find_actions(aligned)
    report = build_report(timeline)
    steps = report.bubble.steps

    def compare_ranks() -> Stragglers:
        counted = aligned.with_spans(aligned.spans.filter(pl.col("step").is_in(steps)))
        least_ns = find_least_cost_ns(report.intermediates, steps)
        return find_stragglers(counted, limits=DEFAULT_LIMITS._replace(least_cost_ns=least_ns))

    return _predicted(actions, combinations, steps, compare_ranks)


def what_if_of_sample(run: SampledRun, changes: Change | Sequence[Change | Combination]) -> WhatIf:
    """Return the predicted step time for each change, over the sampled steps that are in the totals of the report.

    These are the steps from which the report predicts, which a diagnostic names. `changes` and what is raised are those
    of `what_if`.
    """
    report, sample, timeline = run
    actions = find_actions(timeline, steps=sample.steps)
    combinations, steps = combinations_of(changes), report.bubble.steps
    explanation = report.explanation or explain(report.intermediates, steps)
    predicted = _predicted(actions, combinations, steps, lambda: explanation.stragglers)
    pipelines = actions.table["pipeline"].n_unique()
    notes = sample_diagnostics(sample.steps, sample.ratio, (pipelines, pipelines))
    return predicted._replace(diagnostics=(*predicted.diagnostics, *notes))


def _predicted(
    actions: Actions,
    combinations: Sequence[Combination],
    steps: Collection[int],
    compare_ranks: Callable[[], Stragglers],
) -> WhatIf:
    """Return predictions from actions, of which `steps` count. `compare_ranks` is called for other schedules."""
    changes = [change for combination in combinations for change in combination]
    has_schedule = any(isinstance(change, OtherSchedule) for change in changes)
    devices = find_slow_devices(compare_ranks(), actions) if has_schedule else []
    predicted = predict_steps(actions, combinations, steps, devices=devices)
    return predicted._replace(diagnostics=(*actions.diagnostics, *predicted.diagnostics))


def sorted_diagnostics(timeline: Timeline | Stored) -> list[Diagnostic]:
    """Return the diagnostics of a timeline or stored run, errors first, then warnings, then information."""
    return list(errors_first(timeline.diagnostics))


def find_errors(run: Timeline | Report) -> list[Diagnostic]:
    """Return the errors that the metrics of a report add to those of the timeline, such as stages that are missing.

    `run` is a timeline, or its report.

    >>> from stagescope.model import empty_timeline
    >>> find_errors(empty_timeline())
    []
    """
    report = unexplained(run) if isinstance(run, Report) else build_report(run)
    known = set(errors_first(report.timeline.diagnostics))
    return [each for each in report.diagnostics if each.severity == "error" and each not in known]


def report_json(report: Report) -> dict[str, Any]:
    """Return a report as plain data for JSON (docs/report.md), with the alignment of the clocks of its timeline."""
    return to_json(report, clock_json(clock_report(report.timeline)))


def what_if_json(predicted: WhatIf) -> dict[str, Any]:
    """Return predictions as plain data for JSON: times in nanoseconds, fractions from 0 to 1."""
    return {
        "schema": 1,
        "predictions": predicted.table.to_dicts(),
        "diagnostics": [asdict(row) for row in predicted.diagnostics],
    }
