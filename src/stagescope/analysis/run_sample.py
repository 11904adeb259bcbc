"""The results of the sample of a run, and what is usual in a run whose steps are large.

The sample of such a run has some of its pipelines (sampled_pipelines.py). What is usual is learned from the sampled
steps of all pipelines, one group after the other, and given to the sample: it has the slowest pipelines, which do not
show it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

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
from stagescope.analysis.sampled_steps import SampleSteps, sample_of, steps_of
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


class _Groups(NamedTuple):
    """How a run with large steps is divided: groups of its pipelines, and those of its sample, None for all."""

    every: Sequence[Collection[int]]
    sampled: Collection[int] | None


def find_sample(known: Intermediates) -> Intermediates | None:
    """Return the results of the sample of a run; None if that is the whole run.

    They do not refer to `known`: what refers to itself would stay in memory when nothing uses it.
    """
    if known.timeline.spans.height <= sampled_steps.MOST_SPANS:
        return None
    every = steps_of(known.timeline)
    is_large = has_large_steps(len(every), known.timeline.spans.height)
    found = sample_of(known.timeline)
    if found is None and not is_large:
        return None
    timeline, chosen = found or (known.timeline, _whole(every))
    around = is_in_steps(steps_around(chosen.steps))
    windows = Windows(known.windows.pipelines, known.windows.bubbles.filter(around), [])
    sample = replace(known, timeline=timeline, windows=windows, span_rows=None, steps=chosen.steps)
    sample = sample.with_results(
        recorded=known.recorded.filter(around), missing=known.missing, sample_ratio=chosen.ratio
    )
    if not is_large:
        return sample
    groups = _divide(known, sample, len(every))
    if groups.sampled is None and len(groups.every) == 1:
        return None if found is None else sample
    without_spans = _with_timeline(sample, timeline.with_spans(timeline.spans.clear()))
    # Nobody has left out steps yet: what is usual does not depend on that.
    counted = measure_totals(known).counted
    learn = partial(learn_groups, known.timeline, without_spans, groups.every, counted)
    if groups.sampled is not None:
        sample = of_pipelines(sample, groups.sampled, _outlines(timeline))
    return with_later(sample, {"usual": cache(learn)})


def _whole(steps: Sequence[int]) -> SampleSteps:
    """Return a sample of all steps."""
    return SampleSteps(StepRanges((StepRange(steps[0], steps[-1] + 1),)), 1.0)


def _with_timeline(known: Intermediates, timeline: Timeline, windows: Windows | None = None) -> Intermediates:
    """Return what is known of a sample, with other spans, and windows, but without what follows from these."""
    kept = {name: getattr(known, name) for name in ("recorded", "missing", "sample_ratio")}
    return replace(known, timeline=timeline, windows=windows or known.windows).with_results(**kept)


def _divide(known: Intermediates, sample: Intermediates, steps: int) -> _Groups:
    spans, pipelines = known.timeline.spans, known.windows.pipelines
    counts = (
        spans.group_by("rank")
        .agg(spans=pl.len())
        .join(pipelines, on="rank")
        .group_by("pipeline")
        .agg(pl.sum("spans"))
        .sort("pipeline")
    )
    most = sampled_steps.SAMPLE_SPANS * sample.sample_ratio
    windows = with_collectives(
        sample.windows.bubbles.filter(is_in_steps(sample.steps)), sample.timeline.spans
    )
    sampled = choose_pipelines(windows, counts, most)
    return _Groups(group_pipelines(counts, SPANS_OF_GROUP * steps), sampled)


def of_pipelines(known: Intermediates, chosen: Collection[int], outlines: pl.DataFrame) -> Intermediates:
    """Return the results of some pipelines, to which the others are known by the outlines of all ranks."""
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
    timeline: Timeline, sample: Intermediates, groups: Sequence[Collection[int]], counted: Collection[int]
) -> UsualValues:
    """Return what is usual in a run, learned from groups of its pipelines, one after the other.

    `timeline` has the spans of the run, `sample` the other results of the sampled steps, and `counted` are the steps
    in the totals.
    """
    found = sample_of(timeline)
    sample = _with_timeline(sample, timeline if found is None else found[0])
    outlines = _outlines(sample.timeline)
    parts = []
    for group in groups:
        parts.append(_learn(of_pipelines(sample, group, outlines), counted))
        return_memory()
    return join_usual(parts)


def _learn(known: Intermediates, counted: Collection[int]) -> UsualValues:
    """Return what is usual in some pipelines; nothing else of their results remains."""
    return known.learned._replace(durations=usual_durations(known, counted))
