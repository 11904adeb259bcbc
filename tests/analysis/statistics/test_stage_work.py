"""The work of stages, and how it compares with that of the other stages."""

import numpy as np
import pytest
from hypothesis import given, settings

from drawing import timeline_from_text
from planted_runs import Shape, random_times, run
from random_pipelines import arbitrary_timelines, timeline_of
from stagescope.analysis.statistics.action_samples import sample_actions
from stagescope.analysis.statistics.stage_work import STAGE_WORK, measure_stage_excess
from stagescope.model import empty_timeline


def work_of(timeline):
    return measure_stage_excess(sample_actions(timeline.spans)).table


def actions(lengths_ns, *, kind="forward", **facts):
    """Return actions of these lengths, one micro-batch and one microsecond after the other."""
    start = {"rank": 0, "stage": 0, "step": 0, "lane": "compute", "kind": kind, **facts}
    return [
        {**start, "microbatch": number, "start_ns": 1_000 * number, "end_ns": 1_000 * number + length_ns}
        for number, length_ns in enumerate(lengths_ns)
    ]


def test_work_of_a_micro_batch_is_split_by_kind():
    rows = [
        *actions([10, 20]),
        *actions([40, 40], kind="backward"),
        *actions([6, 8], kind="backward_weight"),
        *actions([30, 34], stage=1, rank=1, kind="backward"),
    ]
    table = work_of(timeline_of(rows, 2))
    assert table.rows() == [(0, 2, 15, 40, 7, 62, 40 / 32), (1, 2, 0, 32, 0, 32, 32 / 40)]


def test_stage_is_compared_with_the_mean_of_the_others():
    times = random_times(Shape(pipelines=1, noise=0.0))
    times.action_ns[:, :, :, 1] *= 1.2
    times.action_ns[:, :, :, 3] *= 2
    assert work_of(run(times))["work_to_others"].to_list() == pytest.approx(
        [3 / 4.2, 3.6 / 4, 3 / 4.2, 6 / 3.2]
    )


def test_slow_replica_does_not_make_a_slow_stage():
    for pipelines in (2, 3, 4):
        times = random_times(Shape(pipelines=pipelines, noise=0.0))
        times.action_ns[:, 1, :, 2] *= 2.35
        assert work_of(run(times))["work_to_others"].to_list() == pytest.approx([1, 1, 1, 1])


def test_outlier_actions_and_steps_do_not_count():
    times = random_times(Shape(pipelines=1, noise=0.0))
    times.action_ns[0, 0, 3, 1, 2] *= 60
    times.action_ns[:, 0, 7, 2] *= 3
    assert work_of(run(times))["work_to_others"].to_list() == pytest.approx([1, 1, 1, 1])


def test_halves_of_a_pair_count_half_each_and_are_not_compared():
    pair = [*actions([30], pair=7), *actions([50], kind="backward", stage=1, pair=7)]
    table = work_of(timeline_of(pair, 1))
    assert table["work_ns"].to_list() == [25, 25]
    assert table["work_to_others"].to_list() == [None, None]


def test_planted_stage_imbalance_is_found():
    table = work_of(timeline_from_text("F0 B0 - .  . .\n. F0 - B0 - -"))
    assert table["work_to_others"].to_list() == [3 / 5, 5 / 3]


def test_weight_gradients_alone_give_no_work_per_micro_batch():
    assert work_of(timeline_of(actions([5], kind="backward_weight"), 1)).is_empty()


def test_only_stage_has_no_ratio():
    assert work_of(timeline_of(actions([10]), 1))["work_to_others"].to_list() == [None]


def test_excess_of_samples_is_that_of_the_table():
    excess = measure_stage_excess(sample_actions(run(random_times(Shape(pipelines=3))).spans))
    assert np.exp(excess.shift.mean(axis=1)) == pytest.approx(
        excess.table["work_to_others"].to_list(), abs=0.01
    )


def test_timeline_without_actions_has_no_work():
    found = work_of(empty_timeline())
    assert found.is_empty()
    assert dict(found.schema) == dict(STAGE_WORK.schema)


@settings(max_examples=20, deadline=None)
@given(arbitrary_timelines())
def test_scaling_time_preserves_ratios(timeline):
    slower = timeline.spans.with_columns(timeline.spans["start_ns"] * 1_000, timeline.spans["end_ns"] * 1_000)
    before, after = work_of(timeline), work_of(timeline.with_spans(slower))
    drift = (after["work_to_others"] - before["work_to_others"]).abs().drop_nulls()
    assert (drift < 1e-9).all()
