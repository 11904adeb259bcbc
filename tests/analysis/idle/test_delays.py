"""Delays of actions have the reason that was recorded for them."""

from __future__ import annotations

import polars as pl
import pytest

from delayed_runs import run
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.model import SPANS
from stagescope.model.validate import conform

ORDER = {0: ["F0.0", "F0.1", "B0.0", "B0.1"], 1: ["F1.0", "B1.0", "F1.1", "B1.1"]}
NAMES = (
    "exposed_communication",
    "blocked_on_send",
    "launch_overhead",
    "data_loading",
    "other_work",
    "unattributed",
)


def delayed_run(delay_ns, rank=1, microbatch=0):
    """Return a run in which a forward on the critical path begins `delay_ns` after it could, and when it could."""
    timeline = run(ORDER, lambda action, rank: 100)
    late = (pl.col("rank") == rank) & (pl.col("microbatch") == microbatch) & (pl.col("kind") == "forward")
    begin_ns = timeline.spans.filter(late)["start_ns"][0]
    shift = pl.when(pl.col("start_ns") >= begin_ns).then(delay_ns).otherwise(0)
    spans = timeline.spans.with_columns(pl.col("start_ns") + shift, pl.col("end_ns") + shift)
    return timeline.with_spans(spans), begin_ns


def parts(timeline, *more):
    spans = timeline.spans
    if more:
        spans = pl.concat([spans, conform(pl.DataFrame(list(more)), SPANS)])
    row = build_ledger(find_actions(timeline), spans=spans).steps.row(0, named=True)
    return {name: row[f"{name}_ns"] for name in NAMES if row[f"{name}_ns"]}


def span(begin_ns, length_ns, **more):
    return {"rank": 1, "lane": "host", "kind": "other", "step": 0, "start_ns": begin_ns,
            "end_ns": begin_ns + length_ns, **more}  # fmt: skip


def test_delay_without_a_record_is_unattributed():
    timeline, _ = delayed_run(50)
    assert parts(timeline) == {"unattributed": 50}


@pytest.mark.parametrize(
    ("name", "cause"),
    [("LoadMicroBatch", "data_loading"), ("data loading", "data_loading"), ("log", "other_work")],
)
def test_delay_with_recorded_host_work_has_its_name(name, cause):
    timeline, begin_ns = delayed_run(50)
    assert parts(timeline, span(begin_ns, 50, name=name)) == {cause: 50}


def test_partly_recorded_delay_is_divided():
    timeline, begin_ns = delayed_run(50)
    assert parts(timeline, span(begin_ns, 30, name="LoadMicroBatch")) == {
        "data_loading": 30,
        "unattributed": 20,
    }


def test_send_that_blocks_longer_than_a_transfer_waits_for_its_receiver():
    timeline, begin_ns = delayed_run(50)
    sends = [
        span(begin, length, lane="comm", kind="send_forward", wait_start_ns=begin, wait_end_ns=begin + length)
        for begin, length in ((begin_ns, 50), *((10_000 + 100 * number, 7) for number in range(20)))
    ]
    assert parts(timeline, *sends) == {"exposed_communication": 7, "blocked_on_send": 43}
