"""Which replica finished last, and how long the others waited."""

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from drawing import timeline_from_text
from planted_runs import Shape, random_times, run
from stagescope.analysis.idle.step_windows import find_step_windows
from stagescope.analysis.statistics.replicas import (
    REPLICA_STEPS,
    REPLICAS,
    compare_replicas,
    find_reduction_waits,
    find_replicas,
)
from stagescope.model import SPANS, empty_timeline
from stagescope.model.lazy import parts_of
from stagescope.model.pipelines import find_pipelines
from stagescope.model.validate import conform


def drawn(text, dp):
    timeline = timeline_from_text(text)
    ranks = timeline.ranks.with_columns(
        dp=pl.Series(dp, dtype=pl.Int32),
        pp=pl.lit(0, pl.Int32),
        tp=pl.lit(0, pl.Int32),
        cp=pl.lit(0, pl.Int32),
    )
    spans = timeline.spans.with_columns(stage=pl.lit(0, pl.Int32))
    return replace(timeline.with_spans(spans), ranks=ranks)


def test_other_replicas_wait_from_their_end_to_the_last_end():
    found = find_replicas(drawn("F0 B0 .\nF0 B0 -\nF0 - B0 - .", [0, 1, 2]))
    rows = found.steps.select("pipeline", "is_last", "lead_ns", "wait_ns", "evidence").rows()
    assert rows == [
        (0, False, 2_000, 2_000, "window end"),
        (1, False, 1_000, 1_000, "window end"),
        (2, True, 0, 0, "window end"),
    ]
    assert found.table["caused_wait_ns"].to_list() == [0, 0, 3_000]


def test_replicas_that_end_together_have_no_last_replica():
    found = find_replicas(drawn("F0 B0\nF0 B0", [0, 1]))
    assert found.steps["is_last"].to_list() == [False, False]
    assert found.table["last_count"].to_list() == [0, 0]


def test_recorded_reductions_give_the_wait_minus_compute():
    timeline = drawn("F0 B0 . . .\nF0 - B0 - -", [0, 1])
    reductions = [
        {"rank": 0, "lane": "comm", "kind": "grad_reduce", "step": 0, "start_ns": 1_000, "end_ns": 5_500},
        {"rank": 1, "lane": "comm", "kind": "grad_reduce", "step": 0, "start_ns": 5_000, "end_ns": 5_500},
    ]
    spans = pl.concat([timeline.spans, conform(pl.DataFrame(reductions), SPANS)])
    found = find_replicas(timeline.with_spans(spans))
    assert found.steps.select("pipeline", "wait_ns", "evidence").rows() == [
        (0, 3_000, "reduction"),  # it entered 4,000 ns early and computed for 1,000 of these
        (1, 0, "reduction"),
    ]


@pytest.mark.parametrize("reduces", [False, True])
def test_slow_replica_is_last_and_costs_the_others_its_delay(reduces):
    times = random_times(Shape(pipelines=3))
    times.action_ns[:, 2] *= 1.1
    found = find_replicas(run(replace(times, reduces=reduces)))
    assert found.table["is_claimed"].to_list() == [False, False, True]
    assert found.table["last_count"].to_list() == [0, 0, 20]
    waited = found.table["wait_ns"][0] / (20 * 4)
    assert waited == pytest.approx(0.1 * 335e6, rel=0.15)
    assert found.table["caused_wait_ns"][2] == found.table["wait_ns"].sum()


@pytest.mark.parametrize("steps_at_once", [1, 7])
@pytest.mark.parametrize("reduces", [False, True])
def test_steps_that_are_compared_one_after_the_other_give_what_all_do(steps_at_once, reduces):
    timeline = run(replace(random_times(Shape(pipelines=3)), reduces=reduces))
    whole = find_replicas(timeline)
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    windows = find_step_windows(timeline.spans, pipelines)
    waits = find_reduction_waits(timeline, windows, pipelines)
    measured = [
        [rows.filter(pl.col("step") // steps_at_once == number) for number in range(20 // steps_at_once + 1)]
        for rows in (windows, waits)
    ]
    found = compare_replicas(timeline, tuple(measured), pipelines, (0.0, 0.0), 0.0)
    assert_frame_equal(found.steps, whole.steps, check_exact=True)
    assert_frame_equal(pl.concat(parts_of(found, "steps")), whole.steps, check_exact=True)
    assert_frame_equal(found.table, whole.table, check_exact=True)


def test_tensor_parallel_ranks_are_not_replicas():
    timeline = run(random_times(Shape(pipelines=4, stages=2)))
    ranks = timeline.ranks.with_columns(
        tp=pl.Series([0, 0, 1, 1, 0, 0, 1, 1], dtype=pl.Int32),
        dp=pl.Series([0, 0, 0, 0, 1, 1, 1, 1], dtype=pl.Int32),
    )
    found = find_replicas(replace(timeline, ranks=ranks)).table
    assert found.select("pipeline", "group", "replicas").rows() == [
        (0, 0, 2),
        (2, 2, 2),
        (4, 0, 2),
        (6, 2, 2),
    ]


def test_unknown_clock_error_is_reported():
    times = random_times(Shape(pipelines=2, stages=1))
    found = find_replicas(run(replace(times, machines=["a", "b"], errors_ns={"a": 0, "b": None})))
    assert [one.severity for one in found.diagnostics] == ["warning"]


def test_without_replicas_the_declared_tables_are_empty():
    for timeline in (empty_timeline(), run(random_times(Shape(pipelines=1)))):
        found = find_replicas(timeline)
        assert (found.table.height, found.steps.height) == (0, 0)
        assert dict(found.table.schema) == dict(REPLICAS.schema)
        assert dict(found.steps.schema) == dict(REPLICA_STEPS.schema)


@pytest.mark.exhaustive
def test_equal_replicas_are_claimed_no_more_often_than_stated():
    shape = Shape(pipelines=3, stages=2, steps=10, microbatches=2)
    claimed = sum(
        bool(find_replicas(run(random_times(shape, seed))).table["is_claimed"].any()) for seed in range(200)
    )
    assert claimed <= 20
