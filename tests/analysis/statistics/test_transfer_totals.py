"""The matrix of transfers is what was planted, and what the spans add up to."""

import polars as pl
from polars.testing import assert_frame_equal

from places import DATA
from stagescope.analysis.statistics.transfer_totals import TRANSFER_TOTALS, measure_transfers
from stagescope.api import analyze, read, sql
from stagescope.model import SPANS, empty_timeline
from stagescope.model.messages import match_messages
from stagescope.model.validate import conform

SEND = {"rank": 0, "kind": "send_forward", "lane": "comm", "peer": 1, "step": 0, "stage": 0}
RECEIVE = {"rank": 1, "kind": "recv_forward", "lane": "comm", "peer": 0, "step": 0, "stage": 1}


def totals(rows):
    return measure_transfers(match_messages(conform(pl.DataFrame(rows), SPANS)))


def test_planted_messages_are_summed():
    rows = [
        {**SEND, "microbatch": 0, "start_ns": 10, "end_ns": 15, "bytes": 100},
        {
            **RECEIVE,
            "microbatch": 0,
            "start_ns": 0,
            "end_ns": 30,
            "bytes": 100,
            "wait_start_ns": 2,
            "wait_end_ns": 29,
        },
        {**SEND, "microbatch": 1, "start_ns": 40, "end_ns": 41, "bytes": 50},
        {
            **RECEIVE,
            "microbatch": 1,
            "start_ns": 50,
            "end_ns": 52,
            "bytes": 50,
            "wait_start_ns": 50,
            "wait_end_ns": 51,
        },
    ]
    # The first took 20 ns from the send, the second 2 ns from the receive.
    assert totals(rows).rows() == [(0, 1, 2, 150, 22, 28)]


def test_what_is_unknown_is_null():
    rows = [
        {**SEND, "microbatch": 0, "start_ns": 10, "end_ns": 15, "bytes": None},
        {**RECEIVE, "microbatch": 0, "start_ns": 0, "end_ns": 5, "bytes": None},
    ]
    assert totals(rows).rows() == [(0, 1, 1, None, 0, None)]


def test_a_run_without_messages_has_an_empty_table():
    assert totals([{**SEND, "microbatch": 0, "start_ns": 1, "end_ns": 2}]).schema == dict(
        TRANSFER_TOTALS.schema
    )
    assert analyze(empty_timeline()).transfers.is_empty()


def test_it_adds_up_to_the_spans_of_a_recording():
    run = read(DATA / "recordings" / "v1")
    found = analyze(run).transfers
    sends = run.spans.filter(pl.col("kind").cast(pl.String).str.starts_with("send"))
    sent = (
        sends.group_by(source="rank", target="peer")
        .agg(messages=pl.len().cast(pl.Int64))
        .sort("source", "target")
    )
    assert_frame_equal(found.select("source", "target", "messages"), sent)
    query = "select sum(messages) as n from transfers"
    assert sql(run, query).item() == sends.height
