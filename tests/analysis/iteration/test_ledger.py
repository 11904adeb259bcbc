"""The iteration ledger recovers what was planted between the windows, and sums to the iteration."""

from __future__ import annotations

import polars as pl
import pytest

from drawing import timeline_from_text
from planted_runs import PAUSE_NS, Shape, random_times, run
from stagescope.analysis import build_explained_report
from stagescope.model import SPANS
from stagescope.model.validate import conform
from stagescope.vocabulary.causes import CAUSE_COLUMNS

SHAPE = Shape(steps=6)
MS = 1_000_000
TOTAL = pl.sum_horizontal("busy_ns", *CAUSE_COLUMNS)


def with_spans(timeline, spans):
    return timeline.with_spans(pl.concat([timeline.spans, conform(pl.DataFrame(spans), SPANS)]))


def between(timeline, begin_ns, length_ns, **span):
    """Return a span of one rank after the last action of every step."""
    ends = timeline.spans.filter(lane="compute").group_by("step").agg(pl.max("end_ns")).rows()
    return [
        {
            "name": None,
            **span,
            "step": step,
            "start_ns": end_ns + begin_ns,
            "end_ns": end_ns + begin_ns + length_ns,
        }
        for step, end_ns in ends
    ]


def mean(table, column):
    return table[column].mean()


def ledger(timeline):
    table = build_explained_report(timeline).iterations
    assert (table.select(TOTAL).to_series() == table["iteration_ns"]).all()
    return table


def test_every_rank_and_step_has_an_iteration_and_the_last_one_is_not_whole():
    table = ledger(run(random_times(SHAPE)))
    assert table.select("step", "rank").rows() == [(step, rank) for step in range(6) for rank in range(8)]
    assert table.filter(~pl.col("is_whole"))["step"].unique().to_list() == [5]
    assert (table["end_ns"] - table["start_ns"] == table["iteration_ns"]).all()


def test_pause_between_steps_is_unattributed():
    table = ledger(run(random_times(SHAPE)))
    outside = table["iteration_ns"] - table["window_ns"] - table["data_parallel_wait_ns"]
    assert outside.filter(table["is_whole"]).min() >= PAUSE_NS


def test_slow_replica_is_waited_for_from_the_end_of_the_own_window():
    times = random_times(SHAPE)
    times.action_ns[:, 1] *= 1.25
    table = ledger(run(times))
    windows = table.group_by("pipeline").agg(pl.mean("window_ns"), pl.mean("data_parallel_wait_ns"))
    (fast_ns, wait_ns), (slow_ns, none_ns) = windows.sort("pipeline").drop("pipeline").rows()
    assert wait_ns == pytest.approx(slow_ns - fast_ns, rel=0.02)
    assert none_ns == 0
    assert table.filter("is_last")["pipeline"].unique().to_list() == [4]


def test_recorded_reduction_before_the_last_replica_is_a_wait_and_after_it_a_reduction():
    times = random_times(SHAPE)
    times.action_ns[:, 1] *= 1.25
    timeline = run(times)
    reduces = between(timeline, -40 * MS, 43 * MS, rank=0, kind="grad_reduce", lane="comm")
    table = ledger(with_spans(timeline, reduces)).filter(rank=0)
    assert mean(table, "gradient_reduction_ns") == pytest.approx(3 * MS, rel=0.01)
    assert mean(table, "data_parallel_wait_ns") > 40 * MS


def test_work_of_one_rank_between_steps_is_waited_for_by_all():
    timeline = run(random_times(SHAPE))
    optimizes = between(timeline, 1 * MS, 2 * MS, rank=2, kind="optimizer", lane="compute")
    loads = between(timeline, 3 * MS, 1 * MS, rank=0, kind="other", lane="host", name="LoadMicroBatch")
    table = ledger(with_spans(timeline, [*optimizes, *loads]))
    by_rank = table.group_by("rank").agg(pl.mean("optimizer_ns", "data_loading_ns"))
    assert set(by_rank["optimizer_ns"]) == {2 * MS}
    assert set(by_rank["data_loading_ns"]) == {1 * MS}


def test_other_recorded_work_is_that_of_its_rank_alone():
    timeline = run(random_times(SHAPE))
    table = ledger(
        with_spans(
            timeline, between(timeline, 0, 2 * MS, rank=3, kind="other", lane="host", name="checkpoint")
        )
    )
    assert set(table.filter((pl.col("rank") == 3) & pl.col("is_whole"))["other_work_ns"]) == {2 * MS}
    assert set(table.filter((pl.col("rank") != 3) | ~pl.col("is_whole"))["other_work_ns"]) == {0}


def test_other_work_of_the_rank_that_begins_the_next_step_is_waited_for_by_its_pipeline():
    timeline = run(random_times(SHAPE))
    saves = between(timeline, 1 * MS, 3 * MS, rank=0, kind="other", lane="host", name="checkpoint")
    table, unnamed = ledger(with_spans(timeline, saves)), ledger(timeline)
    whole = table.filter("is_whole")
    assert set(whole.filter(pipeline=0)["other_work_ns"]) == {3 * MS}
    assert set(whole.filter(pipeline=4)["other_work_ns"]) == {0}
    both = (unnamed["unattributed_ns"], table["unattributed_ns"] + table["other_work_ns"])
    assert both[0].to_list() == both[1].to_list()


def test_other_work_before_a_pipeline_that_begins_late_is_waited_for_and_its_rank_is_the_culprit():
    timeline = run(random_times(SHAPE))
    late_ns = pl.when(pl.col("rank") < SHAPE.stages).then(4 * MS).otherwise(0)
    late = timeline.with_spans(
        timeline.spans.with_columns(pl.col("start_ns") + late_ns, pl.col("end_ns") + late_ns)
    )
    starts = late.spans.filter(rank=0, kind="forward").group_by("step").agg(pl.min("start_ns")).rows()
    saves = [
        {"rank": 0, "kind": "other", "lane": "host", "name": "checkpoint", "step": step,
         "start_ns": start_ns - 4 * MS, "end_ns": start_ns}
        for step, start_ns in starts
    ]  # fmt: skip
    report = build_explained_report(with_spans(late, saves))
    by_pipeline = report.iterations.group_by("pipeline").agg(pl.col("other_work_ns").unique())
    assert dict(by_pipeline.rows()) == {0: [4 * MS], 4: [0]}
    culprits = report.culprits.filter(cause="other_work").select("culprit_rank", "victim_rank", "idle_ns")
    assert culprits.rows() == [(0, victim, 4 * MS) for victim in range(4)]
    assert "other work (rank 0: checkpoint)" in report.verdict.why


def test_each_rank_is_the_culprit_of_its_own_other_work_and_the_first_one_of_what_it_takes_longer():
    timeline = run(random_times(SHAPE))
    saves = [
        span
        for rank in range(SHAPE.stages)
        for span in between(
            timeline, 0, (1 + 2 * (rank == 0)) * MS, rank=rank, kind="other", lane="host", name="checkpoint"
        )
        if span["step"] < SHAPE.steps - 1
    ]
    culprits = build_explained_report(with_spans(timeline, saves)).culprits.filter(cause="other_work")
    share = (SHAPE.steps - 1) / SHAPE.steps
    found = {(one, other): ns / share for one, other, ns in
             culprits.select("culprit_rank", "victim_rank", "idle_ns").iter_rows()}  # fmt: skip
    planted = {
        (0, 0): 3 * MS,
        **{(0, rank): 2 * MS for rank in (1, 2, 3)},
        **{(rank, rank): MS for rank in (1, 2, 3)},
    }
    assert found == pytest.approx(planted, rel=1e-6)


def test_iteration_of_sampled_steps_ends_with_the_last_recorded_span():
    timeline = run(random_times(SHAPE))
    sampled = timeline.with_spans(timeline.spans.filter(pl.col("step").is_in([0, 2, 3, 5])))
    optimizes = between(sampled, 1 * MS, 2 * MS, rank=2, kind="optimizer", lane="compute")
    table = ledger(with_spans(sampled, optimizes))
    assert table.filter("is_whole")["step"].unique().to_list() == [2]
    assert set(table.filter(~pl.col("is_whole"))["optimizer_ns"]) == {2 * MS}


def test_replicas_of_a_single_step_wait_for_the_last_one():
    times = random_times(Shape(steps=1))
    times.action_ns[:, 1] *= 1.25
    report = build_explained_report(run(times))
    assert report.explanation.lost_time.basis == "iteration"
    assert report.iterations.filter(pipeline=0)["data_parallel_wait_ns"].min() > 50 * MS


def test_overlapping_steps_do_not_follow_each_other():
    timeline = run(random_times(Shape(steps=2)))
    second = pl.col("step") == 1
    shift_ns = pl.when(second).then(300 * MS).otherwise(0)
    shifted = timeline.spans.with_columns(pl.col("start_ns") - shift_ns, pl.col("end_ns") - shift_ns)
    report = build_explained_report(timeline.with_spans(shifted))
    assert not report.iterations["is_whole"].any()


def test_verdict_names_the_replica_that_the_others_wait_for():
    times = random_times(SHAPE)
    times.action_ns[:, 1] *= 1.25
    verdict = build_explained_report(run(times)).verdict
    assert "data-parallel wait (the pipeline of rank 4 is last in 6 of 6 iterations)" in verdict.why
    assert verdict.slowest.startswith("The last pipeline sets the iteration; its time is ")
    assert "straggler" in verdict.slowest


def test_verdict_states_that_the_last_replica_changes():
    times = random_times(Shape(pipelines=6, steps=12, step_noise=0.2))
    assert "(the last pipeline changes: " in build_explained_report(run(times)).verdict.why


def test_what_the_host_does_after_the_last_step_belongs_to_no_iteration():
    timeline = run(random_times(SHAPE))
    optimizes = between(timeline, 1 * MS, 2 * MS, rank=2, kind="optimizer", lane="compute")
    alone = ledger(with_spans(timeline, optimizes))
    collects = {"kind": "other", "lane": "host", "name": "garbage collection of generation 2"}
    ends = {"kind": "collective", "lane": "comm", "name": "barrier in 0-7 (0)"}
    after = [
        span
        for place, what in ((4, ends), (5, collects))
        for span in between(timeline, place * MS, 600 * MS, rank=2, **what)
        if span["step"] == SHAPE.steps - 1
    ]
    assert ledger(with_spans(timeline, [*optimizes, *after])).equals(alone)


def test_a_run_in_which_no_time_passes_has_no_losses():
    drawn = timeline_from_text("F0 F1 . B0 B1\n. F0 B0 F1 B1")
    still = drawn.with_spans(
        drawn.spans.with_columns(start_ns=pl.lit(17, pl.Int64), end_ns=pl.lit(17, pl.Int64))
    )
    assert build_explained_report(still).losses.is_empty()


def test_actions_that_take_no_time_have_no_predicted_layout():
    drawn = timeline_from_text("F0 F1 . B0 B1\n. F0 B0 F1 B1")
    points = drawn.with_spans(drawn.spans.with_columns(end_ns="start_ns"))
    assert "layout" not in " ".join(build_explained_report(points).improvements["change"].cast(pl.String))
