"""What every idle nanosecond waited for."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines, simulated_timelines
from stagescope.analysis.idle.intervals import IDLE_INTERVALS
from stagescope.model import empty_timeline
from waiting import added, bubbles_of, idle_of, message

TWO_STAGES = """
F0 .  .  .  .  .  .  B0
.  .  .  F0 .  B0 .  .
"""


def pieces(intervals: pl.DataFrame) -> list[tuple]:
    return intervals.select("rank", "position", "waiting_for", "start_ns", "end_ns", "waits_for_rank").rows()


def test_interval_is_cut_at_the_end_of_the_producer_and_at_the_arrival():
    drawn = timeline_from_text(TWO_STAGES, cell_ns=10)
    timeline = added(drawn, *message(0, 1, 0, 12, 25), *message(1, 0, 0, 60, 67))
    assert pieces(idle_of(timeline)) == [
        (0, "inner", "compute", 10, 60, 1),
        (0, "inner", "transfer", 60, 67, 1),
        (0, "inner", "launch", 67, 70, None),
        (1, "leading", "compute", 0, 10, 0),
        (1, "leading", "transfer", 10, 25, 0),
        (1, "leading", "launch", 25, 30, None),
        (1, "inner", "launch", 40, 50, None),
        (1, "trailing", "nothing", 60, 80, None),
    ]


def test_without_recorded_arrival_transfer_and_launch_are_not_separated():
    assert pieces(idle_of(timeline_from_text(TWO_STAGES, cell_ns=10))) == [
        (0, "inner", "compute", 10, 60, 1),
        (0, "inner", "transfer_or_launch", 60, 70, 1),
        (1, "leading", "compute", 0, 10, 0),
        (1, "leading", "transfer_or_launch", 10, 30, 0),
        (1, "inner", "launch", 40, 50, None),
        (1, "trailing", "nothing", 60, 80, None),
    ]


def test_interval_names_the_spans_of_both_actions():
    timeline = timeline_from_text(TWO_STAGES, cell_ns=10)
    interval = idle_of(timeline).row(0, named=True)
    named = timeline.spans.select("rank", "kind", "microbatch")
    assert named.row(interval["waits_for_row"]) == (1, "backward", 0)
    assert named.row(interval["before_row"]) == (0, "backward", 0)


def test_early_input_leaves_only_the_launch():
    timeline = timeline_from_text("F0 F1 .  .\n.  F0 .  F1", cell_ns=10)
    inner = idle_of(added(timeline, *message(0, 1, 0, 10, 10), *message(0, 1, 1, 20, 20)))
    assert (1, "inner", "launch", 20, 30, None) in pieces(inner)


def test_later_of_two_inputs_counts():
    # The pair on rank 1 needs F0 of rank 0, which ends first and arrives last, and B1 of rank 2.
    text = """
    F0.0 .    .    .    .    .
    F1.1 .    .    .    F1.0 B1.1
    F2.1 B2.1 .    .    .    .
    """
    timeline = timeline_from_text(text, cell_ns=10)
    is_pair = (pl.col("rank") == 1) & (pl.col("start_ns") >= 40)
    paired = timeline.spans.with_columns(
        pair=pl.when(is_pair).then(1).cast(pl.Int32),
        start_ns=pl.when(is_pair).then(40).otherwise("start_ns").cast(pl.Int64),
        end_ns=pl.when(is_pair).then(60).otherwise("end_ns").cast(pl.Int64),
    )
    timeline = added(timeline.with_spans(paired), *message(0, 1, 0, 10, 37), *message(2, 1, 1, 20, 25))
    found = [piece for piece in pieces(idle_of(timeline)) if piece[0] == 1]
    assert found == [(1, "inner", "transfer", 10, 37, 0), (1, "inner", "launch", 37, 40, None)]


def test_unrecorded_input_is_unknown():
    spans = timeline_from_text(TWO_STAGES, cell_ns=10).spans.filter(
        ~((pl.col("rank") == 0) & (pl.col("kind") == "forward"))
    )
    timeline = timeline_from_text(TWO_STAGES, cell_ns=10).with_spans(spans)
    found = [piece for piece in pieces(idle_of(timeline)) if piece[2] == "unknown"]
    assert found == []  # the window begins with the forward of rank 1 now
    other = {"kind": "forward", "stage": 0, "microbatch": 7, "start_ns": 0, "end_ns": 10}
    earlier = added(timeline, {"rank": 0, "lane": "compute", "step": 0, **other})
    assert (1, "leading", "unknown", 0, 30, None) in pieces(idle_of(earlier))


@pytest.mark.parametrize(
    ("kind", "step"), [("loss", 0), ("optimizer", 0), ("forward", 1)], ids=["loss", "optimizer", "next step"]
)
def test_interval_before_other_compute_is_other_work(kind, step):
    timeline = timeline_from_text("F0 . . . B0", cell_ns=10)
    other = {"rank": 0, "lane": "compute", "kind": kind, "step": step, "stage": 0, "microbatch": 5}
    found = idle_of(added(timeline, {**other, "start_ns": 20, "end_ns": 30}))
    assert pieces(found.filter(pl.col("step") == 0)) == [
        (0, "inner", "other_work", 10, 20, None),
        (0, "inner", "launch", 30, 40, None),
    ]


def test_actions_without_stage_leave_unknown_intervals():
    spans = timeline_from_text("F0 . B0", cell_ns=10).spans.with_columns(stage=pl.lit(None, pl.Int32))
    found = idle_of(timeline_from_text("F0 . B0").with_spans(spans))
    assert pieces(found) == [(0, None, "unknown", 10, 20, None)]


def test_effect_before_its_cause_waits_for_the_whole_interval():
    # Wrong clocks: the producer ends after its consumer has started.
    timeline = timeline_from_text("F0 -  -  .\n.  .  F0 B0", cell_ns=10)
    assert (1, "leading", "compute", 0, 20, 0) in pieces(idle_of(timeline))


def test_timeline_without_actions_has_no_intervals():
    intervals = idle_of(empty_timeline())
    assert intervals.is_empty()
    assert dict(intervals.schema) == dict(IDLE_INTERVALS.schema)


@settings(max_examples=30, deadline=None)
@given(st.one_of(arbitrary_timelines(), simulated_timelines()))
def test_pieces_sum_to_the_idle_time_of_every_step_and_rank(timeline):
    intervals, bubbles = idle_of(timeline), bubbles_of(timeline)
    assert dict(intervals.schema) == dict(IDLE_INTERVALS.schema)
    assert (intervals["end_ns"] > intervals["start_ns"]).all()
    sums = intervals.group_by("step", "rank").agg(idle_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    expected = bubbles.filter(pl.col("idle_ns") > 0).select("step", "rank", "idle_ns").sort("step", "rank")
    assert sums.sort("step", "rank").equals(expected)


@settings(max_examples=20, deadline=None)
@given(arbitrary_timelines())
def test_pieces_of_an_interval_are_contiguous(timeline):
    intervals = idle_of(timeline)
    assert intervals.equals(intervals.sort(IDLE_INTERVALS.order))
    is_same = intervals["interval"] == intervals["interval"].shift(1)
    touches = intervals["start_ns"] == intervals["end_ns"].shift(1)
    assert (~is_same | touches).drop_nulls().all()


@settings(max_examples=20, deadline=None)
@given(simulated_timelines())
def test_simulated_pipeline_waits_for_compute_and_transfers_only(timeline):
    # The simulator starts every action at once: nothing is left for the host.
    intervals = idle_of(timeline)
    assert set(intervals["waiting_for"].cast(pl.String)) <= {"compute", "transfer", "nothing"}
    spans = timeline.spans
    for row in intervals.filter(pl.col("waiting_for") == "transfer").iter_rows(named=True):
        receives = spans.filter(
            (pl.col("lane") == "comm") & (pl.col("rank") == row["rank"]) & (pl.col("end_ns") == row["end_ns"])
        )
        assert row["waits_for_rank"] in receives["peer"].to_list()


@settings(max_examples=20, deadline=None)
@given(arbitrary_timelines(), st.integers(-(2**40), 2**60))
def test_shifting_all_clocks_shifts_the_intervals(timeline, shift_ns):
    times = pl.col("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    moved = idle_of(timeline.with_spans(timeline.spans.with_columns(times + shift_ns)))
    assert moved.equals(idle_of(timeline).with_columns(pl.col("start_ns", "end_ns") + shift_ns))
