"""A bounded recording never exceeds its limit, and counts the spans it has discarded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.record import file as file_module
from stagescope.record import segments as segments_module
from stagescope.record.buffers import RECORD_BYTES
from stagescope.record.format import NONE
from stagescope.record.recording import MORE_NAMES, Recording
from stagescope.record.records import pack_span
from stagescope.record.retention import MIN_MAX_BYTES, SEGMENTS

pytestmark = pytest.mark.usefixtures("just_booted")

CHUNK = 1000
FACTS = {"version": 1, "rank": 3, "host": "h", "boot": "b", "pid": 7, "process_start_ns": 5, "run": "r"}


def chunk_of(number, *, name=0, count=CHUNK):
    data = bytearray(RECORD_BYTES * count)
    for at in range(count):
        moment_ns = number * CHUNK + at
        pack_span(data, at * RECORD_BYTES, moment_ns, moment_ns + 1, NONE, NONE, NONE, 0, 1, 0, NONE, NONE, name, NONE,
                  0, 1, 0)  # fmt: skip
    return bytes(data)


def begin(tmp_path, max_bytes=MIN_MAX_BYTES):
    recording = Recording(str(tmp_path), max_bytes)
    recording.describe(FACTS)
    return recording


def bytes_in(directory):
    return sum(file.stat().st_size for file in Path(directory).iterdir())


def starts_in(directory):
    timeline = workflow.read(directory)
    [offset_ns] = timeline.clocks["offset_ns"].unique().to_list()
    return (timeline.spans["start_ns"] - offset_ns).to_list()


def notes_in(directory):
    return workflow.read(directory).diagnostics.select("severity", "code", "count").rows()


DISCARDED = "spans.discarded"
MISSING = "spans.missing"


def test_recording_below_the_limit_is_one_complete_file(tmp_path):
    recording = begin(tmp_path)
    for number in range(3):
        recording.write_spans(chunk_of(number))
    recording.finish("exit")
    assert [file.name for file in tmp_path.iterdir()] == ["rank-00003.sscope"]
    assert starts_in(tmp_path) == list(range(3 * CHUNK))
    assert notes_in(tmp_path) == []


@pytest.mark.parametrize("max_bytes", [MIN_MAX_BYTES, 3 * MIN_MAX_BYTES + 12345])
def test_limit_holds_at_all_times_and_latest_spans_are_kept(tmp_path, max_bytes):
    recording, most = begin(tmp_path, max_bytes), 0
    chunks = 8 * max_bytes // (CHUNK * RECORD_BYTES)
    for number in range(chunks):
        recording.write_spans(chunk_of(number))
        recording.write_anchor_if_due()
        most = max(most, bytes_in(tmp_path))
    recording.finish("exit")
    kept = starts_in(tmp_path)
    assert max(most, bytes_in(tmp_path)) <= max_bytes
    assert len(list(tmp_path.iterdir())) == SEGMENTS
    assert kept == list(range(chunks * CHUNK - len(kept), chunks * CHUNK))
    assert len(kept) * RECORD_BYTES > max_bytes / 2
    assert notes_in(tmp_path) == [("warning", DISCARDED, chunks * CHUNK - len(kept))]


def test_every_segment_has_header_names_and_a_clock_anchor(tmp_path):
    recording = begin(tmp_path)
    first = recording.add_name("first")
    for number in range(40):
        recording.write_spans(chunk_of(number, name=first))
        recording.write_anchor_if_due()
    recording.describe({"schedule": {"name": "1F1B"}})
    later = recording.add_name("later")
    recording.write_spans(chunk_of(40, name=later))
    recording.finish("exit")
    for file in tmp_path.iterdir():
        contents = read_contents(file.read_bytes())
        assert contents.header["rank"] == 3
        assert contents.names[1] == "first"
        assert len(contents.anchors) > 0
    assert set(workflow.read(tmp_path).spans["name"].unique()) == {"first", "later"}
    assert workflow.read(tmp_path).ranks["schedule"].to_list() == ["1F1B"]


def test_drops_are_counted_across_segments(tmp_path):
    recording = begin(tmp_path)
    for number in range(40):
        recording.write_spans(chunk_of(number))
        recording.write_drops(number // 10)
    recording.finish("exit")
    dropped = [count for _, code, count in notes_in(tmp_path) if code == "spans.dropped"]
    assert dropped == [3]


@pytest.mark.parametrize("length", [1, 400])
def test_unlimited_names_leave_space_for_spans(tmp_path, length):
    recording = begin(tmp_path)
    for number in range(60):
        names = [recording.add_name(f"{number} {at} " + "\N{GRINNING FACE}" * length) for at in range(50)]
        recording.write_spans(chunk_of(number, name=names[0]))
        assert bytes_in(tmp_path) <= MIN_MAX_BYTES
    recording.finish("exit")
    spans = workflow.read(tmp_path).spans
    assert spans.height + notes_in(tmp_path)[0][2] == 60 * CHUNK
    if length > 1:
        assert spans["name"].unique().to_list() == [MORE_NAMES]


def test_header_fact_too_large_for_the_limit_is_omitted_and_reported(tmp_path, capsys):
    recording = begin(tmp_path)
    recording.describe({"large": "x" * MIN_MAX_BYTES})
    recording.write_spans(chunk_of(0))
    assert "cannot record the fact 'large'" in capsys.readouterr().err
    assert read_contents(Path(recording.path).read_bytes()).header["rank"] == 3


def test_discarded_count_is_exact_without_an_end_frame(tmp_path):
    recording = begin(tmp_path)
    for number in range(40):
        recording.write_spans(chunk_of(number))
    recording.close()
    kept = starts_in(tmp_path)
    assert (("warning", DISCARDED, 40 * CHUNK - len(kept))) in notes_in(tmp_path)
    assert kept[-1] == 40 * CHUNK - 1


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("which", [1, 2])
def test_missing_middle_segment_is_an_error_with_a_count(tmp_path, which, ended):
    recording = begin(tmp_path)
    for number in range(40):
        recording.write_spans(chunk_of(number))
    recording.finish("exit") if ended else recording.close()
    files = sorted(tmp_path.iterdir(), key=lambda file: int(file.name.split(".")[1]))
    lost = len(read_contents(files[which].read_bytes()).spans)
    files[which].unlink()
    assert ("error", MISSING, lost) in notes_in(tmp_path)


def test_missing_first_segments_are_an_error(tmp_path):
    recording = begin(tmp_path)
    for number in range(10):
        recording.write_spans(chunk_of(number))
    recording.finish("exit")
    assert len(list(tmp_path.iterdir())) > 2
    (tmp_path / "rank-00003.sscope").unlink()
    assert [row for row in notes_in(tmp_path) if row[0] == "error"]


def test_damaged_header_of_one_segment_loses_nothing(tmp_path):
    recording = begin(tmp_path)
    for number in range(40):
        recording.write_spans(chunk_of(number))
    recording.finish("exit")
    before = starts_in(tmp_path)
    damaged = sorted(tmp_path.iterdir())[1]
    data = bytearray(damaged.read_bytes())
    data[25] ^= 1
    damaged.write_bytes(data)
    assert starts_in(tmp_path) == before
    assert [row[0] for row in notes_in(tmp_path)].count(
        "error"
    ) == 2  # the damaged bytes and the missing frame


def test_undeletable_segment_stops_growth_and_spans_are_counted(tmp_path, monkeypatch, capsys):
    def refuse(_):
        raise PermissionError(13, "Permission denied")

    recording = begin(tmp_path)
    monkeypatch.setattr(segments_module.os, "unlink", refuse)
    for number in range(40):
        recording.write_spans(chunk_of(number))
        assert bytes_in(tmp_path) <= MIN_MAX_BYTES
    assert recording.spans_written + recording.spans_lost == 40 * CHUNK
    assert recording.spans_lost > 0
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.undo()
    recording.write_spans(chunk_of(40))
    recording.write_drops(recording.spans_lost)
    recording.finish("exit")
    assert starts_in(tmp_path)[-1] == 41 * CHUNK - 1


def test_externally_deleted_segment_is_tolerated(tmp_path):
    recording = begin(tmp_path)
    for number in range(40):
        recording.write_spans(chunk_of(number))
        for file in tmp_path.iterdir():
            if str(file) != recording.path:
                file.unlink()
    assert recording.spans_written == 40 * CHUNK


def test_full_disk_between_segments_loses_only_the_spans_of_that_time(tmp_path, monkeypatch):
    recording, write, stored = begin(tmp_path), os.write, []
    for number in range(40):
        refused = number % 7 in {3, 4}

        def fail(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(file_module.os, "write", fail if refused else write)
        recording.write_spans(chunk_of(number))
        stored += [] if refused else [number]
    recording.write_drops(recording.spans_lost)
    recording.finish("exit")
    assert recording.spans_lost == (40 - len(stored)) * CHUNK
    kept = starts_in(tmp_path)
    assert {start // CHUNK for start in kept} == set(stored[-len(kept) // CHUNK :])
    assert bytes_in(tmp_path) <= MIN_MAX_BYTES


def test_segments_of_two_processes_with_one_rank_stay_separate(tmp_path):
    rows = [Recording(str(tmp_path), MIN_MAX_BYTES) for _ in range(2)]
    for pid, recording in enumerate(rows):
        recording.describe(FACTS | {"pid": pid, "rank": 3})
    for number in range(30):
        for recording in rows:
            recording.write_spans(chunk_of(number))
    for recording in rows:
        recording.finish("exit")
    assert len({file.name.partition(".")[0] for file in tmp_path.iterdir()}) == 2
    assert bytes_in(tmp_path) <= 2 * MIN_MAX_BYTES
