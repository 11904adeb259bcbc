"""Frames that are in a file several times are used once, and more spans than the process stored are reported."""

from __future__ import annotations

import pytest

from recordings import anchor_record, encode, recording_frames, span_record
from stagescope import api
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import format as fmt

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
