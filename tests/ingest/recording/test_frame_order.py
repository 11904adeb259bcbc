"""Frames that are in a file several times are used once, and more spans than the process stored are reported."""

from __future__ import annotations

import json

import pytest

from recordings import anchor_record, encode, recording_frames, span_record
from stagescope import api
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import format as fmt
from stagescope.record.recording import Recording

SPANS = [span_record(start_ns=10 * n, end_ns=10 * n + 5, step=0, stage=0, microbatch=n) for n in range(6)]
FRAMES = recording_frames(SPANS)
FIRST = 3


def numbered(frames):
    return [(number, *frame) for number, frame in enumerate(frames)]


def written(tmp_path, frames):
    path = tmp_path / "rank-00000.sscope"
    path.write_bytes(b"".join(fmt.encode_frame(*frame) for frame in frames))
    return api.read(path)


def notes(timeline):
    return timeline.diagnostics.select("severity", "code", "count").rows()


@pytest.mark.parametrize("is_renumbered", [True, False])
def test_repeated_frames_are_used_once(tmp_path, is_renumbered):
    intact = written(tmp_path, numbered(FRAMES))
    repeated = FRAMES[:5] + FRAMES[FIRST:6] + FRAMES[5:]
    if is_renumbered:
        frames = numbered(repeated)
    else:
        all_numbered = numbered(FRAMES)
        frames = all_numbered[:5] + all_numbered[FIRST:6] + all_numbered[5:]
    timeline = written(tmp_path, frames)
    assert timeline.spans.equals(intact.spans)
    assert notes(timeline) == [("warning", "frames.repeated", 3)]


def test_frames_in_another_order_lack_nothing(tmp_path):
    intact = written(tmp_path, numbered(FRAMES))
    frames = numbered(FRAMES)
    frames[4], frames[6] = frames[6], frames[4]
    timeline = written(tmp_path, frames)
    assert timeline.spans.sort("start_ns").equals(intact.spans)
    assert notes(timeline) == []


def test_a_frame_with_the_number_of_another_is_skipped(tmp_path):
    frames = numbered(FRAMES)
    frames[5] = (4, fmt.SPANS, span_record(start_ns=1, end_ns=2))
    timeline = written(tmp_path, frames)
    assert timeline.spans.height == 5
    assert set(notes(timeline)) == {
        ("error", "frames.missing", 1),
        ("error", "frames.contradictory", 1),
        ("error", "spans.missing", 1),
    }


def test_more_spans_than_the_end_states_are_reported(tmp_path):
    extra = [*FRAMES[:4], (fmt.SPANS, SPANS[0] + SPANS[1]), *FRAMES[4:]]  # repeated in another frame
    timeline = written(tmp_path, numbered(extra))
    assert notes(timeline) == [("error", "spans.surplus", 2)]


def test_equal_frames_without_records_are_not_repetitions():
    contents = read_contents(
        encode([(fmt.DROPS, b'{"dropped_spans": 1}')] * 2 + [(fmt.CLOCK, anchor_record())])
    )
    assert (contents.repeated_frames, contents.dropped_spans, len(contents.anchors)) == (0, 1, 1)


def test_names_that_are_missing_are_counted(tmp_path):
    frames = recording_frames([span_record("other", name=number) for number in (0, 1, 2, 3, 4_000_000_000)])
    timeline = written(tmp_path, numbered(frames))
    assert notes(timeline) == [("error", "names.missing", 2)]
    assert timeline.spans["name"].to_list()[3:] == ["name 3 (missing)", "name 4000000000 (missing)"]


KINDS = {
    fmt.COUNTERS: (fmt.COUNTER.pack(1_000, 2.0, 0, -1, -1, 1), "counters"),
    fmt.RAW_CLOCK: (fmt.RAW_ANCHOR.pack(1_000, 2_000, 30), "raw_clock"),
    fmt.CLOCK: (anchor_record(), "clock"),
}


def counted(frame_type, *, extra=0):
    """Return the frames of a recording with three frames of a type, as its END states, and `extra` more."""
    record, name = KINDS[frame_type]
    frames = [frame for frame in recording_frames(SPANS[:2]) if frame[0] != fmt.CLOCK]
    more = [(frame_type, bytes([n]) + record[1:]) for n in range(3 + extra)]
    stated = {"file_frames": len(frames) + 2, "file_records": {"spans": 2, name: 3}}
    end = {"spans": 2, "dropped_spans": 0, "reason": "exit", **stated}
    return [*frames[:-1], *more, (fmt.END, json.dumps(end).encode())]


@pytest.mark.parametrize("frame_type", KINDS)
def test_removed_frames_of_counters_and_clocks_are_noticed_although_the_others_were_renumbered(
    tmp_path, frame_type
):
    frames = counted(frame_type)
    assert notes(written(tmp_path, numbered(frames))) == []
    del frames[5]
    assert notes(written(tmp_path, numbered(frames))) == [
        ("error", "frames.missing", 1),
        ("error", "records.missing", 1),
    ]


@pytest.mark.parametrize("frame_type", KINDS)
def test_surplus_counters_and_clock_readings_are_noticed(tmp_path, frame_type):
    assert notes(written(tmp_path, numbered(counted(frame_type, extra=2)))) == [
        ("error", "records.surplus", 2)
    ]


def test_a_later_header_counts_what_was_stored_before_it(tmp_path):
    # The process was killed: there is no END.
    header = {"file_frames": 7, "file_records": {"spans": 4, "clock": 1}}
    frames = recording_frames(SPANS[:4], end=False)
    frames += [(fmt.HEADER, json.dumps(header).encode()), (fmt.SPANS, SPANS[4])]
    codes = [code for _, code, _ in notes(written(tmp_path, numbered(frames)))]
    assert codes == ["recording.no_end"]
    del frames[4]
    assert notes(written(tmp_path, numbered(frames)))[:2] == [
        ("error", "frames.missing", 1),
        ("error", "spans.missing", 1),
    ]


def test_counts_that_no_process_states_are_ignored():
    end = {"spans": 1, "dropped_spans": 0, "file_frames": "x", "file_records": {"clock": None, "spans": [1]}}
    frames = [*recording_frames(SPANS[:1], end=False), (fmt.END, json.dumps(end).encode())]
    contents = read_contents(encode(frames))
    assert (contents.lost_frames, +contents.missing_records) == (0, {})


@pytest.mark.usefixtures("just_booted")
def test_what_a_recording_states_about_itself_is_so(tmp_path):
    recording = Recording(str(tmp_path), max_bytes=2**20)
    recording.describe({"rank": 0, "recording": "one"})
    for n in range(16):
        recording.add_name("x" * 400)
        recording.write_spans(span_record(start_ns=10 * n, end_ns=10 * n + 5) * 1_000)
        recording.write_anchor_if_due()
    recording.finish("exit")
    paths = sorted(tmp_path.glob("*.sscope"))
    assert len(paths) > 2
    assert [row for row in notes(api.read(tmp_path)) if row[0] == "error"] == []
    frames = [frame for frame in fmt.scan_frames(paths[0].read_bytes()) if frame.type != fmt.CLOCK]
    (tmp_path / paths[0].name).write_bytes(encode([(each.type, bytes(each.payload)) for each in frames]))
    missing = [row for row in notes(api.read(tmp_path)) if row[1] == "records.missing"]
    assert missing == [("error", "records.missing", 1)]
