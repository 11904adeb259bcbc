"""Hidden and exposed communication."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines, simulated_timelines
from stagescope.analysis.idle.overlap import OVERLAP
from stagescope.model import empty_timeline
from waiting import added, bubbles_of, message, overlap_of

TRANSFER = ["transfer_ns", "transfer_hidden_ns", "transfer_exposed_ns", "transfer_hidden_fraction"]
REDUCE = ["reduce_ns", "reduce_hidden_ns", "reduce_exposed_ns", "reduce_hidden_fraction"]


def test_message_is_hidden_while_its_receiver_computes():
    drawn = timeline_from_text("F0 F1 .  .\n.  F0 .  F1", cell_ns=10)
    timeline = added(drawn, *message(0, 1, 0, 10, 10), *message(0, 1, 1, 15, 25))
    assert overlap_of(timeline).filter(pl.col("rank") == 1).select(TRANSFER).rows() == [(10, 5, 5, 0.5)]


def test_waiting_for_the_sender_to_compute_is_not_communication():
    drawn = timeline_from_text("F0 -  .  .\n.  .  .  F0", cell_ns=10)
    send, receive = message(0, 1, 0, 20, 25)
    timeline = added(drawn, send, {**receive, "start_ns": 0, "wait_start_ns": 0, "wait_end_ns": 25})
    found = overlap_of(timeline).filter(pl.col("rank") == 1)
    assert found.select(TRANSFER).rows() == [(5, 0, 5, 0.0)]
    assert found["receive_wait_ns"].to_list() == [25]


def test_message_without_recorded_send_starts_at_the_end_of_its_action():
    drawn = timeline_from_text("F0 .  .\n.  .  F0", cell_ns=10)
    _, receive = message(0, 1, 0, 12, 17)
    assert overlap_of(added(drawn, receive)).select("rank", "transfer_ns").rows() == [(0, 0), (1, 7)]


def test_messages_without_recorded_arrival_are_counted_but_not_measured():
    drawn = timeline_from_text("F0 F1 .  .\n.  F0 .  F1", cell_ns=10)
    found = overlap_of(added(drawn, *message(0, 1, 1, 15, 25)))
    assert found.select("messages", "timed_messages").rows() == [(0, 0), (2, 1)]
    assert overlap_of(drawn).select(TRANSFER).rows() == [(None, None, None, None)] * 2


def test_concurrent_messages_count_once():
    drawn = timeline_from_text("F0 F1 .  .  .\n.  .  .  F0 F1", cell_ns=10)
    timeline = added(drawn, *message(0, 1, 0, 10, 30), *message(0, 1, 1, 20, 25))
    assert overlap_of(timeline)["transfer_ns"].to_list() == [0, 20]


def test_reduction_counts_until_the_next_step_starts():
    one = timeline_from_text("F0 B0 .", cell_ns=10)
    other = timeline_from_text("F0 B0 .", cell_ns=10, step=1, origin_ns=60)
    reduce = {"rank": 0, "lane": "comm", "kind": "grad_reduce", "start_ns": 15, "end_ns": 70}
    timeline = added(one.with_spans(pl.concat([one.spans, other.spans])), reduce)
    assert overlap_of(timeline).select("step", *REDUCE).rows() == [
        (0, 45, 5, 40, 5 / 45),
        (1, 10, 10, 0, 1.0),
    ]


def test_timeline_without_actions_has_no_overlap():
    found = overlap_of(empty_timeline())
    assert found.is_empty()
    assert dict(found.schema) == dict(OVERLAP.schema)


@settings(max_examples=25, deadline=None)
@given(st.one_of(arbitrary_timelines(), simulated_timelines()))
def test_hidden_and_exposed_sum_to_the_communication(timeline):
    found, bubbles = overlap_of(timeline), bubbles_of(timeline)
    assert dict(found.schema) == dict(OVERLAP.schema)
    times = ("step", "rank", "window_ns", "receive_wait_ns", "send_wait_ns")
    unrecorded = [name for name in times[3:] if not found.is_empty() and not found[name].count()]
    assert found.select(times).drop(unrecorded).equals(bubbles.select(times).drop(unrecorded))
    assert not any(bubbles[name].sum() for name in unrecorded)
    for name in ("transfer", "reduce"):
        hidden, exposed = found[f"{name}_hidden_ns"], found[f"{name}_exposed_ns"]
        assert (hidden >= 0).all()
        assert (exposed >= 0).all()
        assert (hidden + exposed == found[f"{name}_ns"]).all()
    assert (found["transfer_exposed_ns"] <= bubbles["idle_ns"]).all()
