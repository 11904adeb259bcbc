"""Long recordings, whose spans stay in their files: everything is as if they were in memory."""

from __future__ import annotations

import gzip
from dataclasses import replace

import numpy as np
import pytest
import zstandard

from planted_runs import Shape, random_times, run
from recorded_runs import small_frames, write_recordings
from recordings import encode
from stagescope.ingest.recording import long_spans, survey
from stagescope.ingest.recording.columns import SPAN_DTYPE
from stagescope.ingest.recording.frames import read_contents, read_long_contents
from stagescope.ingest.recording.reader import part_of
from stagescope.ingest.recording.survey import Files, contents_of
from stagescope.record import format as fmt
from stagescope.record.recording import Recording
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.steps import StepRange

SHAPE = Shape(pipelines=1, stages=2, microbatches=4, steps=9)
NEVER = 10**9


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(long_spans, "SPANS_OF_BLOCK", 20)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Return the bytes of a recording, in frames of a few spans."""
    place = tmp_path_factory.mktemp("planted")
    write_recordings(run(replace(random_times(SHAPE), reduces=True)), place, SHAPE.stages)
    return encode(small_frames((place / "rank-00000.sscope").read_bytes(), spans=7))


def with_spans(data, change):
    """Return a recording whose spans were changed in place: `change` gets all of them."""
    frames = [(frame.type, bytes(frame.payload)) for frame in fmt.scan_frames(data)]
    spans = np.frombuffer(b"".join(each for kind, each in frames if kind == fmt.SPANS), SPAN_DTYPE).copy()
    change(spans)
    rest = memoryview(spans.tobytes())
    changed = []
    for kind, payload in frames:
        own = payload if kind != fmt.SPANS else bytes(rest[: len(payload)])
        rest = rest if kind != fmt.SPANS else rest[len(payload) :]
        changed.append((kind, own))
    return encode(changed)


def implausible(data):
    def change(spans):
        spans["end_ns"][3] += 10**17
        spans["start_ns"][30] -= 10**17
        spans["wait_start_ns"][11] = spans["wait_end_ns"][11] = 5 * 10**17
        spans["start_ns"][50] = 2**62 + 1

    return with_spans(data, change)


def unknown(data):
    def change(spans):
        spans["kind"][[2, 40, 41]] = 199
        spans["name"][[5, 60]] = 77_777
        spans["stage"][spans["microbatch"] == 2] = -1

    return with_spans(data, change)


def without_steps(data):
    def change(spans):
        spans["step"] = -1

    return with_spans(data, change)


def copied_frames(data):
    frames = [
        bytes(fmt.encode_frame(each.sequence, each.type, bytes(each.payload)))
        for each in fmt.scan_frames(data)
    ]
    again = list(fmt.scan_frames(data))[6]
    other = fmt.encode_frame(again.sequence, again.type, bytes(again.payload)[::-1])
    copy = fmt.encode_frame(len(frames) + 3, again.type, bytes(again.payload))
    return b"".join([*frames[:9], frames[6], other, copy, *frames[9:]])


def damaged(data):
    changed = bytearray(data)
    for at in range(len(data) // 3, len(data), len(data) // 3 - 50):
        changed[at] ^= 0xFF
    return bytes(changed)


WAYS = {
    "intact": bytes,
    "implausible": implausible,
    "unknown": unknown,
    "without-steps": without_steps,
    "copied-frames": copied_frames,
    "damaged": damaged,
    "truncated": lambda data: data[: len(data) * 2 // 3],
    "without-header": lambda data: data[data.index(fmt.MAGIC, 1) :],
    "gzip": gzip.compress,
    "zstandard": zstandard.compress,
}


def surveyed(files, most_spans, monkeypatch):
    monkeypatch.setattr(survey, "SPANS_IN_MEMORY", most_spans)
    found = survey.survey(Files(tuple(files)))
    return found, [contents_of(each, Files(tuple(files)), most_spans) for each in found.processes]


def require_equal(long, whole):
    """Assert that two objects have equal fields; arrays and tables by their content, spans by those of all blocks."""
    assert type(long) is type(whole)
    if hasattr(long, "blocks"):
        one, other = long.in_memory(), whole.in_memory()
        for name, column in other.spans.arrays.items():
            np.testing.assert_array_equal(one.spans[name], column)
        fields = [name for name in vars(one) if name not in ("spans", "long", "header")]
        for name in fields:
            require_equal(getattr(one, name), getattr(other, name))
    elif hasattr(long, "equals"):
        assert long.equals(whole)
    elif isinstance(long, np.ndarray):
        np.testing.assert_array_equal(long, whole)
    elif isinstance(long, (list, tuple)):
        assert len(long) == len(whole)
        for one, other in zip(long, whole, strict=True):
            require_equal(one, other)
    elif hasattr(long, "__dict__") and vars(long):
        for name, value in vars(long).items():
            require_equal(value, getattr(whole, name))
    else:
        assert str(long) == str(whole)


@pytest.mark.parametrize("way", WAYS)
def test_a_survey_of_a_long_recording_finds_the_same(way, planted, tmp_path, monkeypatch):
    path = tmp_path / "rank-00000.sscope"
    path.write_bytes(WAYS[way](planted))
    long, contents = surveyed([path], 10, monkeypatch)
    whole, all_in_memory = surveyed([path], NEVER, monkeypatch)
    require_equal(long, whole)
    require_equal(contents, all_in_memory)
    assert all(each.long is not None for each in contents)
    assert all(each.long is None for each in all_in_memory)


def test_files_of_a_bounded_recording_are_joined(tmp_path, monkeypatch):
    recording = Recording(str(tmp_path), max_bytes=2**20)
    recording.describe({"rank": 0, "recording": "one"})
    span = np.zeros(1_000, SPAN_DTYPE)
    for number in range(14):
        span["start_ns"], span["end_ns"] = 10 * number, 10 * number + 5
        span["step"] = number
        recording.write_spans(span.tobytes())
        recording.write_anchor_if_due()
    recording.finish("exit")
    files = sorted(tmp_path.glob("*.sscope"))
    assert len(files) > 2
    for most_spans in (10, 2_500):
        long, contents = surveyed(files, most_spans, monkeypatch)
        whole, all_in_memory = surveyed(files, NEVER, monkeypatch)
        require_equal(long, whole)
        require_equal(contents, all_in_memory)
        assert contents[0].long is not None


@pytest.mark.parametrize("way", ["intact", "without-steps", "unknown", "gzip"])
@pytest.mark.parametrize("steps", [StepRange(2, 4), StepRange(0, 1), StepRange(50, 60)])
def test_chosen_steps_are_read_a_block_at_a_time(way, steps, planted, tmp_path):
    path = tmp_path / "rank-00000.sscope"
    path.write_bytes(WAYS[way](planted))
    require_equal(part_of(path, steps=steps, most_spans=10), part_of(path, steps=steps, most_spans=NEVER))


def test_a_file_that_was_cut_off_after_it_was_surveyed_is_refused(planted, tmp_path):
    path = tmp_path / "rank-00000.sscope"
    path.write_bytes(planted)
    contents = read_long_contents(path, [planted], 10)
    assert len(contents.spans) == 0
    assert contents.span_count == len(read_contents(planted).spans)
    path.write_bytes(planted[: len(planted) // 2])
    with pytest.raises(InputError, match="has changed"):
        contents.in_memory()
