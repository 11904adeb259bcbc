"""The actions of every step, counted in parts of a run, and the typical step."""

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from drawing import timeline_from_text
from stagescope.model.step_actions import count_actions, join_counts, typical_step

PICTURES = ("F0 B0 F1 B1", "F0 B0 .  F1 B1", "F0 B0 .  .  F1 B1", "F0 B0")


def spans_of(pictures):
    """Return the spans of one step for each picture, and others without a step and without actions."""
    drawn = [
        timeline_from_text(picture, step=step, origin_ns=step * 100_000).spans
        for step, picture in enumerate(pictures)
    ]
    last = drawn[-1]
    other = last.with_columns(kind=pl.lit("optimizer", last.schema["kind"]), step=len(pictures))
    return pl.concat([*drawn, other, other.with_columns(step=pl.lit(None, pl.Int32))])


def test_the_typical_step_has_the_median_duration_of_those_with_as_many_actions():
    counts = count_actions(spans_of(PICTURES).lazy()).collect().sort("step")
    assert counts.select("step", "action_count").rows() == [(0, 4), (1, 4), (2, 4), (3, 2), (4, 0)]
    assert (counts["end_ns"] - counts["start_ns"]).to_list() == [4000, 5000, 6000, 2000, None]
    assert typical_step(counts) == 1


@pytest.mark.parametrize("parts", [1, 3])
def test_counts_of_parts_are_those_of_the_run(parts):
    spans = spans_of(PICTURES)
    shares = [spans.gather_every(parts, offset=number) for number in range(parts)]
    joined = join_counts(count_actions(share.lazy()).collect() for share in shares)
    assert_frame_equal(joined, count_actions(spans.lazy()).collect().sort("step"))


def test_without_actions_the_first_step_is_typical():
    others = spans_of(PICTURES).filter(pl.col("kind") == "optimizer")
    assert typical_step(count_actions(others.lazy()).collect()) == len(PICTURES)
    assert typical_step(count_actions(others.clear().lazy()).collect()) is None
