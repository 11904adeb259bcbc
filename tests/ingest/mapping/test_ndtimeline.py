"""Timelines of veScale's ndtimeline, as local_timeline_handler.py at 6ac8945 writes them; no sample is public."""

import json

import pytest

import stagescope
from drawing import timeline_from_text

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""
METRICS = {"forward": "forward-compute", "backward": "backward-compute"}


def events(step, late_us):
    """Return the events of one step: of the handler's own arguments alone, the last one first."""
    found = []
    for span in timeline_from_text(DRAWING).spans.iter_rows(named=True):
        args = {"rank": span["rank"], "step": step, "tp": 0, "pp": span["rank"]}
        start_us, length_us = span["start_ns"] / 1000 + late_us, (span["end_ns"] - span["start_ns"]) / 1000
        metric = METRICS[span["kind"]]
        place = {"pid": 0, "tid": span["rank"] * 10, "cat": metric}
        found.append({"ph": "X", "name": metric, "ts": start_us, "dur": length_us, "args": args, **place})
        if span["kind"] == "forward" and span["rank"] == 0:
            send = {"name": "forward-send", "ts": start_us + length_us, "dur": 1.0, "tid": 2}
            found.append({"ph": "X", "args": args, **place, **send})
    return found[::-1]


@pytest.fixture
def timeline(tmp_path):
    names = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "dp rank[0]"}}]
    path = tmp_path / "trace_step3_4"
    path.write_text(json.dumps([*events(4, 1e6), *events(3, 0), *names]))
    return stagescope.read(path)


def test_actions_are_counted_within_the_step_of_their_rank(timeline):
    found = timeline.spans.filter(timeline.spans["kind"].is_in(list(METRICS))).sort(
        "step", "start_ns", "rank"
    )
    drawn = timeline_from_text(DRAWING).spans.sort("start_ns", "rank")
    columns = ["rank", "stage", "kind", "microbatch"]
    assert found.filter(found["step"] == 3).select(columns).rows() == drawn.select(columns).rows()
    assert found.filter(found["step"] == 4).select(columns).rows() == drawn.select(columns).rows()
    assert timeline.ranks.select("rank", "pp", "tp", "dp").rows() == [(0, 0, 0, 0), (1, 1, 0, 0)]


def test_transfers_are_counted_and_have_the_peer_of_their_direction(timeline):
    sends = timeline.spans.filter(timeline.spans["kind"] == "send_forward").sort("start_ns")
    assert sends.select("step", "microbatch", "peer").rows() == [(3, 0, 1), (3, 1, 1), (4, 0, 1), (4, 1, 1)]


def test_a_warning_states_that_micro_batches_were_counted(timeline):
    codes = dict(timeline.diagnostics.select("code", "severity").iter_rows())
    assert codes["actions.numbered_by_count"] == "warning"
