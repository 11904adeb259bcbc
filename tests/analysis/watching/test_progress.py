from dataclasses import replace

import polars as pl

from stagescope.analysis.watching.progress import measure_progress
from stagescope.model import empty_timeline
from synthetic import Shape, pipeline_timeline

TIMELINE = pipeline_timeline(Shape(ranks=4, microbatches=4, steps=4))


def stored(until_step):
    """Return the timeline in which rank 3 has stored the spans before a step only."""
    spans = TIMELINE.spans
    kept = (pl.col("rank") != 3) | (pl.col("step") < until_step)
    return replace(TIMELINE, spans=spans.filter(kept))


def test_each_rank_has_its_last_action_and_step():
    found = measure_progress(TIMELINE)
    assert list(found) == [0, 1, 2, 3]
    assert {each.step for each in found.values()} == {3}
    assert {each.behind for each in found.values()} == {0}
    own = TIMELINE.spans.filter(pl.col("rank") == 2, pl.col("lane").is_in(["compute", "comm"]))
    assert found[2].end_ns == own["end_ns"].max()


def test_an_action_has_its_label_and_a_transfer_its_kind():
    last = {("compute", "forward"): "F0.0", ("comm", "send_forward"): "send forward"}
    for (lane, kind), text in last.items():
        spans = TIMELINE.spans.filter(pl.col("lane") == lane, pl.col("kind") == kind, pl.col("rank") == 0)
        assert measure_progress(replace(TIMELINE, spans=spans.head(1)))[0].action == text


def test_a_rank_is_behind_when_others_have_ended_later_steps():
    slow = TIMELINE.spans.with_columns(
        step=pl.when(pl.col("rank") == 3).then(pl.col("step").clip(0, 1)).otherwise("step")
    )
    found = measure_progress(replace(TIMELINE, spans=slow))
    assert {rank: each.behind for rank, each in found.items()} == {0: 0, 1: 0, 2: 0, 3: 1}


def test_a_rank_whose_spans_are_stored_later_is_not_behind():
    assert [measure_progress(stored(step))[3].behind for step in (1, 2, 3)] == [0, 0, 0]
    assert measure_progress(stored(1))[3].step == 0


def test_a_rank_that_ends_a_step_while_another_begins_the_next_is_not_behind():
    later = TIMELINE.spans.with_columns(
        end_ns=pl.when((pl.col("rank") == 3) & (pl.col("step") == 3))
        .then(pl.col("end_ns") + 10**9)
        .otherwise("end_ns")
    )
    assert measure_progress(replace(TIMELINE, spans=later))[3].behind == 0


def test_nothing_recorded_is_no_progress():
    assert measure_progress(empty_timeline()) == {}
