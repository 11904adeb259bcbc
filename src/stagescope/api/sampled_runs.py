"""The sample of a stored run that is too large to be analyzed at once, read without the other steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.completeness.unaligned import drop_ranks
from stagescope.analysis.sampled_pipelines import has_large_steps
from stagescope.analysis.sampled_steps import SampleSteps, choose_sample, in_steps
from stagescope.api.reading import read
from stagescope.api.saved_reports import large_run_of
from stagescope.execution.memory import return_memory
from stagescope.ingest.stored_run import known_steps
from stagescope.model.step_ranges import steps_around
from stagescope.model.tables import SPANS, STEPS
from stagescope.model.validate import in_order
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection

    from typing_extensions import Unpack

    from stagescope.analysis import Report
    from stagescope.api.reading import RunFacts
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest
    from stagescope.vocabulary.steps import StepRanges


class SampledRun(NamedTuple):
    """The report of a run, its sampled steps, and a timeline with their spans and what is needed of others."""

    report: Report
    sample: SampleSteps
    timeline: Timeline


def sample_stored_run(
    *paths: str | os.PathLike[str],
    on_progress: Callable[[int, int], object] | None = None,
    **facts: Unpack[RunFacts],
) -> SampledRun | None:
    """Return the sample of a stored run from which its report predicts, and the report.

    The run is analyzed first if it has no report. None for anything that is read as a whole: other input, a run that is
    analyzed at once, one without steps, one with large steps, of which the sample has some of the pipelines, and one of
    whose sample no step is in the totals.
    `on_progress` and what is raised are those of `report_of_stored_run`.
    """
    found = large_run_of(*paths, on_progress=on_progress, **facts)
    if found is None:
        return None
    directory, manifest, report = found
    steps, span_count = known_steps(directory, manifest), _count_spans(manifest, report.unaligned)
    sample = choose_sample(steps, span_count)
    if sample is None or has_large_steps(len(steps), span_count) or not _has_any(sample.steps, report):
        return None
    parts = [read(*paths, **_of_steps(facts, each)) for each in _read_together(sample.steps)]
    timeline = replace(
        parts[0],
        spans=pl.concat([part.spans for part in parts]),  # in_steps sorts what it keeps
        steps=in_order(pl.concat([part.steps for part in parts]), STEPS),
    )
    del parts
    timeline = in_steps(drop_ranks(timeline, report.unaligned), sample.steps)
    return_memory()
    return SampledRun(report, sample, timeline)


def _has_any(steps: StepRanges, report: Report) -> bool:
    """Return whether one of some steps is in the totals of a report."""
    return any(step in each for each in steps.ranges for step in report.bubble.steps)


def _count_spans(manifest: Manifest, without: Collection[int]) -> int:
    """Return the spans of all pipelines but those of some ranks."""
    return sum(
        part.rows for part in manifest.parts if part.table == SPANS.name and part.pipeline not in without
    )


def _read_together(steps: StepRanges) -> list[StepRange]:
    """Return the ranges with the steps next to them; ranges that overlap or touch are one."""
    united: list[StepRange] = []
    for each in steps_around(steps).ranges:
        if united and each.start <= united[-1].stop:
            united[-1] = StepRange(united[-1].start, each.stop)
        else:
            united.append(each)
    return united


def _of_steps(facts: RunFacts, steps: StepRange) -> RunFacts:
    return {**facts, "steps": steps}
