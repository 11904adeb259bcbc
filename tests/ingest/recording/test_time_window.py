"""Records outside of the time of a recording are dropped and counted, unless the anchors themselves are wrong."""

from __future__ import annotations

import pytest

from recordings import anchor_record, encode, recording_frames, span_record, step_record
from stagescope import api
from stagescope.record import format as fmt

SECOND_NS = 10**9
BEGAN_NS = 50_000 * SECOND_NS
SPANS = [
    span_record(start_ns=at, end_ns=at + SECOND_NS // 2, step=0, stage=0, microbatch=n)
    for n in range(20)
    for at in [BEGAN_NS + n * SECOND_NS]
]
FAR = {"start_ns": BEGAN_NS, "end_ns": BEGAN_NS + 5}
LEAST, MOST = -(2**63), 2**63 - 1


def read(tmp_path, more=(), *, spans=SPANS, anchors=(BEGAN_NS, BEGAN_NS + 20 * SECOND_NS), end=True):
    frames = recording_frames([*spans, *more], end=end, process_start_ns=BEGAN_NS)
    clock = b"".join(anchor_record(at, 10**18, 100) for at in anchors)
    frames[2] = (fmt.CLOCK, clock)
    path = tmp_path / "rank-00000.sscope"
    path.write_bytes(encode(frames))
    return api.read(path)


def implausible(timeline):
    found = timeline.diagnostics.filter(code="timestamps.implausible")
    return found.select("severity", "message", "count").rows()


@pytest.mark.parametrize(
    "at_ns", [LEAST, MOST, 0, -1, 2**62, BEGAN_NS - 90 * SECOND_NS, BEGAN_NS + 900 * SECOND_NS]
)
@pytest.mark.parametrize("field", ["start_ns", "end_ns"])
def test_a_span_outside_of_the_recording_is_dropped(tmp_path, at_ns, field):
    intact = read(tmp_path)
    timeline = read(tmp_path, [span_record(step=0, stage=0, microbatch=99, **{**FAR, field: at_ns})])
    assert timeline.spans.equals(intact.spans)
    text = "spans are outside of the time of the recording, and were dropped"
    assert implausible(timeline) == [("error", text, 1)]
    assert implausible(intact) == []


@pytest.mark.parametrize("at_ns", [LEAST, MOST, 7])
def test_a_wait_outside_of_the_recording_is_unknown(tmp_path, at_ns):
    more = span_record("recv_forward", wait_start_ns=BEGAN_NS + 1, wait_end_ns=at_ns, **FAR)
    timeline = read(tmp_path, [more])
    [row] = timeline.spans.filter(kind="recv_forward").to_dicts()
    assert (row["wait_start_ns"], row["wait_end_ns"]) == (None, None)
    assert [count for _, _, count in implausible(timeline)] == [1]


def test_step_markers_and_counters_outside_of_the_recording_are_dropped(tmp_path):
    frames = recording_frames([*SPANS, step_record(0, BEGAN_NS, LEAST)], process_start_ns=BEGAN_NS)
    frames[2] = (fmt.CLOCK, anchor_record(BEGAN_NS, 10**18))
    frames.insert(3, (fmt.COUNTERS, fmt.COUNTER.pack(MOST, 1.0, 0, 0, 0, 1)))
    path = tmp_path / "a.sscope"
    path.write_bytes(encode(frames))
    timeline = api.read(path)
    assert timeline.steps.is_empty()
    assert timeline.counters.is_empty()
    assert [count for _, _, count in implausible(timeline)] == [1, 1]


@pytest.mark.parametrize("anchors", [(), (0, 1), (LEAST, MOST), (BEGAN_NS, BEGAN_NS + SECOND_NS)])
def test_wrong_or_missing_anchors_cost_no_span(tmp_path, anchors):
    assert read(tmp_path, anchors=anchors).spans.height == 20


def test_an_anchor_of_another_wall_clock_is_dropped(tmp_path):
    frames = recording_frames(SPANS, process_start_ns=BEGAN_NS)
    times = [(BEGAN_NS + n * SECOND_NS, 10**18 + n * SECOND_NS, 100) for n in range(3)]
    frames[2] = (fmt.CLOCK, b"".join(anchor_record(*time) for time in [*times, (BEGAN_NS + 5, 7, 1)]))
    path = tmp_path / "a.sscope"
    path.write_bytes(encode(frames))
    timeline = api.read(path)
    assert timeline.clocks["offset_ns"].to_list() == [10**18 - BEGAN_NS]
    assert [count for _, _, count in implausible(timeline)] == [1]


def test_a_killed_process_may_have_been_stuck_after_its_last_anchor(tmp_path):
    late = BEGAN_NS + 1_800 * SECOND_NS
    more = [span_record(start_ns=late, end_ns=late + 5)]
    assert read(tmp_path, more).spans.height == 20
    assert read(tmp_path, more, end=False).spans.height == 21


def test_lost_frames_may_have_held_later_anchors(tmp_path):
    late = BEGAN_NS + 900 * SECOND_NS
    read(tmp_path, [span_record(start_ns=late, end_ns=late + 5)])
    path = tmp_path / "rank-00000.sscope"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    assert api.read(path).spans.height == 21


def test_a_wait_that_ends_after_the_last_stored_span_is_kept(tmp_path):
    frames = recording_frames(
        [
            span_record("send", 100 * n, 100 * n + 50, wait_start_ns=100 * n, wait_end_ns=100 * n + 700)
            for n in range(9)
        ],
        end=False,
    )
    (tmp_path / "rank-00000.sscope").write_bytes(encode(frames))
    timeline = api.read(tmp_path)
    assert "timestamps.implausible" not in timeline.diagnostics["code"]
    assert timeline.spans["wait_end_ns"].max() == 1_000_000 + 1500
