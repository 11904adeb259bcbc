"""Predictions are given the meetings within the steps of the sample, and not those of all steps of a large run."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stagescope.analysis.intermediates import Intermediates, intermediates_of
from stagescope.analysis.iteration.activities import name_activities, without_waits
from stagescope.analysis.prediction.not_replayed import shown_meetings
from stagescope.model.lazy import InParts, with_later
from stagescope.vocabulary.steps import StepRange, StepRanges
from truth.causes import Place, late_rank
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

SAMPLE = StepRanges((StepRange(2, 3), StepRange(6, 8)))


@pytest.fixture(scope="module")
def known():
    plan = make_plan(Shape(replicas=2, steps=10), Costs(noise=0.02), 3).with_end(
        barrier=True, records_norm=True
    )
    return intermediates_of(timeline_of(simulate(late_rank(plan, Place(1, 1), 60 * MS))))


def never():
    pytest.fail("a table with a row per rank and collective was loaded as a whole")


def test_meetings_of_a_sample_are_those_that_its_spans_wait_for(known):
    step = pl.col("step")
    parts = [known.meetings.filter(own) for own in (step < 3, step.is_between(3, 6), step > 6)]
    sample = Intermediates(known.timeline, known.windows, None, SAMPLE)
    large = known.with_results(own_sample=sample).without_results("meetings")
    found = shown_meetings(with_later(large, {"meetings": InParts(never, lambda: iter(parts))}))
    assert found["step"].unique().sort().to_list() == [1, 2, 3, 5, 6, 7, 8]

    chosen = step.is_in([2, 6, 7]) & ~pl.col("kind").is_in(["send", "recv"])
    named = name_activities(known.timeline.spans.filter(chosen))
    pieces = without_waits(named, found)
    assert pieces.height > named.height
    assert_frame_equal(pieces, without_waits(named, known.meetings))


def test_all_meetings_of_a_run_that_is_its_own_sample_count(known):
    assert_frame_equal(shown_meetings(known), known.meetings)
