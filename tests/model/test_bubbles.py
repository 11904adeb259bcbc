"""The bubble per step and rank."""

import polars as pl

from drawing import timeline_from_text
from stagescope.model import SPANS
from stagescope.model.bubbles import step_bubbles
from stagescope.model.pipelines import find_pipelines
from stagescope.model.validate import conform


def bubbles(spans: pl.DataFrame) -> pl.DataFrame:
    return step_bubbles(spans, find_pipelines(spans))


def added(spans: pl.DataFrame, *rows: dict) -> pl.DataFrame:
    return pl.concat([spans, conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)])


TWO_RANKS = """
F0 F1 .  B0 -  B1 -
.  F0 B0 -  F1 B1 -
"""


def test_every_rank_is_measured_in_the_window_of_its_pipeline():
    found = bubbles(timeline_from_text(TWO_RANKS, cell_ns=10).spans)
    columns = ["step", "rank", "window_start_ns", "window_end_ns", "window_ns", "busy_ns", "idle_ns"]
    assert found.select(columns).rows() == [(0, 0, 0, 70, 70, 60, 10), (0, 1, 0, 70, 70, 60, 10)]


def test_an_overlapped_pair_is_busy_once():
    spans = timeline_from_text("F0 - - B1 -", cell_ns=10).spans
    pair = spans.with_columns(start_ns=pl.lit(0, pl.Int64), end_ns=pl.lit(30, pl.Int64))
    assert bubbles(pair).select("window_ns", "busy_ns", "idle_ns").rows() == [(30, 30, 0)]


def test_the_window_ends_with_the_last_action_and_not_with_the_optimizer():
    spans = timeline_from_text("F0 B0\nF0 B0", cell_ns=10).spans
    longer = added(
        spans, {"rank": 0, "lane": "compute", "kind": "optimizer", "step": 0, "start_ns": 20, "end_ns": 90}
    )
    assert bubbles(longer)["window_ns"].to_list() == [20, 20]


def test_other_compute_inside_the_window_is_not_idle_whatever_step_it_names():
    spans = timeline_from_text("F0 B0 . .\nF0 . . B0", cell_ns=10).spans
    optimizer = {"rank": 0, "lane": "compute", "kind": "optimizer", "start_ns": 25, "end_ns": 45}
    assert bubbles(added(spans, optimizer)).select("rank", "busy_ns").rows() == [(0, 35), (1, 20)]


def test_transfers_and_host_work_are_no_compute():
    spans = timeline_from_text("F0 . B0", cell_ns=10).spans
    host = {"rank": 0, "lane": "host", "kind": "other", "step": 0, "start_ns": 10, "end_ns": 20}
    send = {"rank": 0, "lane": "comm", "kind": "send_forward", "step": 0, "start_ns": 10, "end_ns": 20}
    assert bubbles(added(spans, host, send))["idle_ns"].to_list() == [10]


def receive(start_ns: int, wait: tuple[int | None, int | None], kind: str = "recv_forward") -> dict:
    return {
        "rank": 0, "lane": "comm", "kind": kind, "step": 0,
        "start_ns": start_ns, "end_ns": 100, "wait_start_ns": wait[0], "wait_end_ns": wait[1],
    }  # fmt: skip


def test_receive_wait_is_the_union_of_the_waits_inside_the_window():
    spans = added(
        timeline_from_text("F0 . . . B0", cell_ns=10).spans,
        receive(0, (12, 20)),
        receive(0, (15, 25), "recv_backward"),
        receive(0, (45, 80)),
        receive(0, (None, None)),
        receive(0, (30, 35), "send_forward"),
    )
    assert bubbles(spans)["receive_wait_ns"].to_list() == [(25 - 12) + (50 - 45)]


def test_replicas_have_windows_of_their_own():
    spans = timeline_from_text("F0 B0 . .\nF0 . . B0", cell_ns=10).spans
    loops = [
        {"rank": rank, "lane": "comm", "kind": "send_forward", "peer": rank + 2, "start_ns": 0, "end_ns": 1}
        for rank in (0, 1)
    ]
    assert bubbles(added(spans, *loops))["window_ns"].to_list() == [20, 40]


def test_steps_are_measured_apart_and_sorted():
    first = timeline_from_text("F0 . B0", cell_ns=10, step=7).spans
    second = timeline_from_text("F0 B0", cell_ns=10, step=8, origin_ns=1_000).spans
    found = bubbles(pl.concat([second, first]))
    assert found.select("step", "window_ns", "idle_ns").rows() == [(7, 30, 10), (8, 20, 0)]


def test_times_stay_whole_nanoseconds():
    found = bubbles(timeline_from_text(TWO_RANKS).spans)
    assert {found[name].dtype for name in found.columns if name.endswith("_ns")} == {pl.Int64}
