import polars as pl
from hypothesis import given, settings

from delayed_runs import run
from drawing import timeline_from_text
from random_pipelines import one_f_one_b, simulated_timelines, timeline_of
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.transfer_lags import find_transfer_lags
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.model import empty_timeline


def lags(actions):
    """Return (receiver's stage, micro-batch, direction) and lag of every need that was transferred."""
    at = actions.table.select("stage", "microbatch")[actions.needs["action"]]
    found = at.with_columns(actions.needs["direction"], actions.needs["is_remote"])
    found = found.with_columns(lag_ns=find_transfer_lags(actions).lag_ns).filter("is_remote")
    return {(stage, m, str(way)): lag for stage, m, way, _, lag in found.iter_rows()}


@settings(deadline=None, max_examples=20)
@given(simulated_timelines())
def test_constant_transfer_time_is_recovered(timeline):
    actions = find_actions(timeline)
    received = timeline.spans.filter(pl.col("kind").is_in(("recv_forward", "recv_backward")))
    hop_ns = (received["end_ns"] - received["start_ns"]).min() or 0
    assert set(lags(actions).values()) <= {hop_ns}


def receiver_that_looks_late():
    """Return a run whose receiver is idle for micro-batches 0 and 2, and busy when 1 arrives."""

    def action(rank, kind, microbatch, start_ns, end_ns):
        return {"rank": rank, "stage": rank, "lane": "compute", "kind": kind, "step": 0,
                "microbatch": microbatch, "start_ns": start_ns, "end_ns": end_ns}  # fmt: skip

    def receive(microbatch, start_ns, end_ns):
        return {**action(1, "recv_forward", microbatch, start_ns, end_ns), "lane": "comm", "peer": 0}

    return timeline_of(
        [
            *(action(0, "forward", m, 100 * m, 100 * m + 100) for m in range(3)),
            *(action(1, "forward", m, start, end) for m, start, end in ((0, 107, 250), (1, 250, 290), (2, 309, 400))),
            receive(0, 0, 107),
            receive(1, 107, 250),
            receive(2, 290, 309),
        ],
        2,
    )  # fmt: skip


def test_unread_result_counts_with_the_usual_time_of_its_link():
    assert lags(find_actions(receiver_that_looks_late())) == {
        (1, 0, "forward"): 7,
        (
            1,
            1,
            "forward",
        ): 8,  # noted 50 after it was made, but by a receiver that was busy: the median of 7 and 9
        (1, 2, "forward"): 9,
    }


def test_arrival_before_its_cause_takes_no_time():
    timeline = receiver_that_looks_late()
    early = timeline.spans.with_columns(
        pl.when(pl.col("kind") == "recv_forward")
        .then(pl.col("end_ns") - 1_000)
        .otherwise("end_ns")
        .alias("end_ns")
    )
    assert set(lags(find_actions(timeline.with_spans(early))).values()) == {0}


def test_unrecorded_transfers_take_no_time_and_are_counted():
    found = find_transfer_lags(find_actions(timeline_from_text("F0 . . B0\n. F0 B0 .")))
    assert found.lag_ns.tolist() == [0, 0, 0, 0]
    assert [row.count for row in found.diagnostics] == [2]


def test_link_that_was_slow_once_has_one_long_lag():
    actions = find_actions(run(one_f_one_b(2, 3), lambda action, rank: 10, hop_ns=4))
    assert set(lags(actions).values()) == {4}
    assert find_transfer_lags(actions).diagnostics == ()


def test_empty_input_has_no_lags():
    assert find_transfer_lags(find_actions(empty_timeline())).lag_ns.tolist() == []


def test_result_passed_on_before_its_pair_ends_has_a_negative_lag():
    def action(rank, kind, microbatch, start_ns, end_ns):
        return {"rank": rank, "stage": rank, "lane": "compute", "kind": kind, "step": 0,
                "microbatch": microbatch, "start_ns": start_ns, "end_ns": end_ns}  # fmt: skip

    timeline = timeline_of(
        [
            action(0, "forward", 0, 0, 10),
            action(1, "forward", 0, 10, 20),
            action(1, "backward", 0, 20, 30),
            {**action(0, "forward", 1, 30, 50), "pair": 1},
            {**action(0, "backward", 0, 30, 50), "pair": 1},
            action(1, "forward", 1, 41, 51),
        ],
        2,
    )
    assert lags(find_actions(timeline))[1, 1, "forward"] == 41 - 50
    assert build_ledger(find_actions(timeline)).steps["unattributed_ns"].to_list() == [0]
