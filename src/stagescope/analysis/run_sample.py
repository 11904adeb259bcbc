"""The results of the sample of a run, and what is usual in a run whose steps are large.

The sample of such a run has some of its pipelines (sampled_pipelines.py). What is usual is learned from some steps of
all pipelines, one group after the other, and given to the sample: it has the slowest pipelines, which do not show it,
and may have a single step, which does not show how much data a pipeline usually has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis import sampled_steps
from stagescope.analysis.other_pipelines import OtherPipelines
from stagescope.analysis.sampled_pipelines import (
    SPANS_OF_GROUP,
    choose_pipelines,
    group_pipelines,
    has_large_steps,
    with_collectives,
)
from stagescope.analysis.sampled_steps import SampleSteps, choose_learned, in_steps, sample_of, steps_of
from stagescope.analysis.step_results import usual_durations
from stagescope.analysis.totals import measure_totals
from stagescope.analysis.usual_values import UsualValues, join_usual
from stagescope.analysis.windows import Windows
from stagescope.execution.memory import return_memory
from stagescope.model.lazy import with_later
from stagescope.model.outlines import inner_collectives, outline
from stagescope.model.step_ranges import is_in_steps, steps_around
from stagescope.model.tables import SPANS
from stagescope.model.validate import in_order
from stagescope.vocabulary.steps import StepRange, StepRanges

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.model import Timeline


def find_sample(known: Intermediates) -> Intermediates | None:
    """Return the results of the sample of a run; None if that is the whole run.

    They do not refer to `known`: what refers to itself would stay in memory when nothing uses it.
    """
    if known.timeline.spans.height <= sampled_steps.MOST_SPANS:
        return None
    every, chosen = steps_of(known.timeline), sample_of(known.timeline)
    is_large = has_large_steps(len(every), known.timeline.spans.height)
    if chosen is None and not is_large:
        return None
    own = chosen or _whole(every)
    learned = choose_learned(every, own)
    sample = _with_timeline(_without_spans(known, own), in_steps(known.timeline, own.steps))
    counts = _count_spans(known)
    sampled = _choose_pipelines(sample, counts) if is_large else None
    groups = group_pipelines(counts, SPANS_OF_GROUP * learned.ratio)
    if sampled is None and len(groups) == 1 and learned.steps == sample.steps:
        return None if chosen is None else sample
    if sampled is not None:
        sample = of_pipelines(sample, sampled, _outlines(sample.timeline))
    # No steps have been left out yet: what is usual does not depend on that.
    counted = measure_totals(known).counted
    shell = _without_spans(known, learned)
    learn = partial(learn_groups, known.timeline, learned.steps, shell, groups, counted)
    return with_later(sample, {"usual": cache(learn)})


def _whole(steps: Sequence[int]) -> SampleSteps:
    """Return a sample of all steps."""
    return SampleSteps(StepRanges((StepRange(steps[0], steps[-1] + 1),)), 1.0)


def _without_spans(known: Intermediates, chosen: SampleSteps) -> Intermediates:
    """Return what is known of some steps of a run without their spans."""
    timeline, around = known.timeline, is_in_steps(steps_around(chosen.steps))
    windows = Windows(known.windows.pipelines, known.windows.bubbles.filter(around), [])
    empty = timeline.with_spans(timeline.spans.clear())
    shell = replace(known, timeline=empty, windows=windows, span_rows=None, steps=chosen.steps)
    recorded = known.recorded.filter(around)
    return shell.with_results(recorded=recorded, missing=known.missing, sample_ratio=chosen.ratio)


def _with_timeline(known: Intermediates, timeline: Timeline, windows: Windows | None = None) -> Intermediates:
    """Return what is known of a sample, with other spans, and windows, but without what follows from these."""
    kept = {name: getattr(known, name) for name in ("recorded", "missing", "sample_ratio")}
    return replace(known, timeline=timeline, windows=windows or known.windows).with_results(**kept)


def _count_spans(known: Intermediates) -> pl.DataFrame:
    """Return pipeline and spans: how many each pipeline has in the run."""
    counts = (
        known.timeline.spans.group_by("rank").agg(spans=pl.len()).join(known.windows.pipelines, on="rank")
    )
    return counts.group_by("pipeline").agg(pl.sum("spans")).sort("pipeline")


def _choose_pipelines(sample: Intermediates, counts: pl.DataFrame) -> Collection[int] | None:
    """Return the pipelines that a sample of all pipelines is reduced to; None: it is not."""
    bubbles = sample.windows.bubbles.filter(is_in_steps(sample.steps))
    windows = with_collectives(bubbles, sample.timeline.spans)
    return choose_pipelines(windows, counts, sampled_steps.SAMPLE_SPANS * sample.sample_ratio)


def of_pipelines(known: Intermediates, chosen: Collection[int], outlines: pl.DataFrame) -> Intermediates:
    """Return the results of some pipelines; of the others, only the outlines are known."""
    windows = known.windows
    is_chosen = pl.col("pipeline").is_in(list(chosen))
    own = Windows(windows.pipelines.filter(is_chosen), windows.bubbles.filter(is_chosen), [])
    is_own = pl.col("rank").is_in(own.pipelines["rank"].implode())
    divided = _with_timeline(known, known.timeline.with_spans(known.timeline.spans.filter(is_own)), own)
    return divided.with_results(others=OtherPipelines(outlines.filter(~is_own), windows))


def _outlines(timeline: Timeline) -> pl.DataFrame:
    """Return what ranks share with other pipelines, which they may also wait for inside of actions."""
    spans = timeline.spans
    return in_order(pl.concat([outline(spans), inner_collectives(spans)]), SPANS)


def learn_groups(
    timeline: Timeline,
    steps: StepRanges,
    known: Intermediates,
    groups: Sequence[Collection[int]],
    counted: Collection[int],
) -> UsualValues:
    """Return what is usual in a run, learned from groups of its pipelines, one after the other.

    `timeline` has the spans of the run, `known` are the other results of the `steps` to learn from, and `counted` are
    the steps in the totals.
    """
    known = _with_timeline(known, in_steps(timeline, steps))
    outlines = _outlines(known.timeline)
    parts = []
    for group in groups:
        parts.append(_learn(of_pipelines(known, group, outlines), counted))
        return_memory()
    return join_usual(parts)


def _learn(known: Intermediates, counted: Collection[int]) -> UsualValues:
    """Return what is usual in some pipelines; nothing else of their results remains."""
    return known.learned._replace(durations=usual_durations(known, counted))
