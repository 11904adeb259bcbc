"""Complete steps of a running training are kept as they were read, and those after them follow."""

from dataclasses import replace

import polars as pl
import pytest

from stagescope.api.settled_steps import SettledSteps
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=2, microbatches=4, steps=12))
SORTED = ["rank", "lane", "start_ns"]


def until(step, after=-1):
    """Return what is recorded up to a step, and a part of the step after it; of those up to `after`, a part."""
    chosen = pl.col("step").is_between(after, step) | ((pl.col("step") == step + 1) & (pl.col("rank") == 0))
    return replace(TIMELINE, spans=TIMELINE.spans.filter(chosen))


def same(spans, expected):
    return spans.sort(SORTED).equals(expected.sort(SORTED))


def test_each_step_is_there_once_however_often_it_is_read():
    settled = SettledSteps()
    for complete in (0, 0, 2, 5, 8):
        shown = settled.take(until(complete, settled.last), complete)
        assert same(shown.spans, until(complete).spans)
        assert (settled.first, settled.last) == (0, complete)
        assert same(settled.spans, TIMELINE.spans.filter(pl.col("step") <= complete))


def test_oldest_steps_are_dropped_and_the_last_three_stay():
    settled = SettledSteps(most_spans=10)
    for complete in range(10):
        settled.take(until(complete, settled.last), complete)
        assert settled.first == max(0, complete - 2)
    assert set(settled.timeline.spans["step"]) == {7, 8, 9}


def test_settled_spans_do_not_move_with_a_later_alignment():
    settled = SettledSteps()
    settled.take(until(3), 3)
    moved = until(5, settled.last)
    moved = replace(moved, spans=moved.spans.with_columns(pl.col("start_ns", "end_ns") + 7))
    shown = settled.take(moved, 5)
    assert same(shown.spans.filter(pl.col("step") <= 3), TIMELINE.spans.filter(pl.col("step") <= 3))


@pytest.mark.parametrize("at", [2, 5])
def test_what_lies_between_steps_is_there_once(at):
    start_ns = TIMELINE.spans.filter(pl.col("step") == at)["end_ns"].max()
    between = TIMELINE.spans.head(1).with_columns(
        step=pl.lit(None, pl.Int32), start_ns=pl.lit(start_ns), end_ns=pl.lit(start_ns + 5)
    )
    whole = replace(TIMELINE, spans=pl.concat([TIMELINE.spans, between]))
    settled = SettledSteps()
    for complete in (1, 4, 8):
        shown = settled.take(whole, complete)
    assert shown.spans["step"].null_count() == 1
    assert shown.spans.height == whole.spans.height


def test_nothing_is_complete_at_first():
    settled = SettledSteps()
    shown = settled.take(until(0), -1)
    assert shown.spans.height == until(0).spans.height
    assert settled.timeline is None
    assert settled.spans.is_empty()
