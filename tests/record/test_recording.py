from __future__ import annotations

import errno
import json
import os

import pytest

from stagescope.ingest.recording.frames import read_contents
from stagescope.record import file as file_module
from stagescope.record import recording as recording_module
from stagescope.record.format import DEVICE_ANCHOR, MAX_PAYLOAD_BYTES, NONE, SPAN, Frame, scan_frames
from stagescope.record.recording import MAX_NAME_CHARACTERS, MAX_NAMES, MORE_NAMES, Recording


def records(*microbatches):
    rows = [(1, 2, NONE, NONE, NONE, 0, 0, m, NONE, NONE, 0, NONE, 0, 1, 0) for m in microbatches]
    return b"".join(SPAN.pack(*row) for row in rows)


@pytest.fixture
def recording(tmp_path):
    recording = Recording(str(tmp_path))
    recording.describe({"rank": 2})
    yield recording
    recording.close()


def contents(recording_or_path):
    path = recording_or_path if isinstance(recording_or_path, (str, os.PathLike)) else recording_or_path.path
    with open(path, "rb") as opened:
        return read_contents(opened.read())


@pytest.fixture
def full_disk(monkeypatch):
    """Writes fail until `full_disk.remove()` is called."""

    class FullDisk:
        write = staticmethod(os.write)

        def refuse(self, *_):
            raise OSError(errno.ENOSPC, "No space left on device")

        def arrive(self):
            monkeypatch.setattr(file_module.os, "write", self.refuse)

        def remove(self):
            monkeypatch.setattr(file_module.os, "write", self.write)

    return FullDisk()


def test_no_file_before_the_first_span(recording, tmp_path):
    recording.add_name("a")
    recording.write_drops(0)
    recording.write_anchor_if_due()
    recording.finish("exit")
    assert recording.path is None
    assert list(tmp_path.iterdir()) == []


def test_header_and_names_precede_spans(recording):
    recording.add_name("dataloader")
    recording.write_spans(records(0, 1))
    found = contents(recording)
    assert found.header == {"rank": 2}
    assert found.names == {1: "dataloader"}
    assert found.spans["microbatch"].tolist() == [0, 1]
    assert recording.path.endswith("rank-00002.sscope")


def test_empty_spans_write_no_frame(recording, tmp_path):
    recording.write_spans(b"")
    assert list(tmp_path.iterdir()) == []


def test_later_facts_and_names_are_written(recording):
    recording.write_spans(records(0))
    recording.describe({"world_size": 4})
    recording.add_name("later")
    recording.write_spans(records(1))
    found = contents(recording)
    assert found.header == {"rank": 2, "world_size": 4}
    assert found.names == {1: "later"}


def test_facts_added_during_a_header_write_are_written_later(recording, monkeypatch):
    append_json = file_module.FrameFile.append_json

    def interrupted(frame_file, frame_type, facts):
        written = append_json(frame_file, frame_type, facts)
        monkeypatch.undo()
        recording.describe({"late": True})
        return written

    monkeypatch.setattr(file_module.FrameFile, "append_json", interrupted)
    recording.write_spans(records(0))
    recording.write_spans(records(1))
    assert contents(recording).header == {"rank": 2, "late": True}


def test_end_frame_counts_stored_and_lost_spans(recording):
    recording.write_spans(records(0, 1, 2))
    recording.write_drops(5)
    path = recording.path
    recording.finish("exit")
    found = contents(path)
    assert found.end == {"spans": 3, "dropped_spans": 5, "reason": "exit"}
    assert len(found.anchors) == 1
    assert found.lost_frames == 0


def test_drop_count_is_written_when_it_changes(recording):
    recording.write_spans(records(0))
    for dropped in (0, 3, 3, 3, 4):
        recording.write_drops(dropped)
    found = contents(recording)
    assert found.dropped_spans == 4
    assert found.frames == 4


def test_drops_without_spans_create_a_file(recording):
    recording.write_drops(7)
    assert contents(recording).dropped_spans == 7


def test_spans_lost_to_a_full_disk_are_counted_and_reported_once(recording, full_disk, capsys):
    recording.write_spans(records(0))
    full_disk.arrive()
    for microbatch in (1, 2, 3):
        recording.write_spans(records(microbatch, microbatch))
    recording.write_drops(recording.spans_lost)
    full_disk.remove()
    recording.write_drops(recording.spans_lost)
    recording.write_spans(records(4))
    found = contents(recording)
    assert found.spans["microbatch"].tolist() == [0, 4]
    assert found.dropped_spans == recording.spans_lost == 6
    assert found.gaps == []
    assert found.lost_frames == 0
    printed = capsys.readouterr().err
    assert printed == f"stagescope: cannot write {recording.path}; spans are dropped and counted\n"


def test_refused_header_is_written_later(recording, full_disk):
    full_disk.arrive()
    recording.write_spans(records(0))
    full_disk.remove()
    recording.add_name("a")
    recording.write_spans(records(1))
    found = contents(recording)
    assert (found.header, found.names) == ({"rank": 2}, {1: "a"})


def test_end_frame_has_the_final_count_after_a_refused_drop_frame(recording, full_disk):
    recording.write_spans(records(0))
    path = recording.path
    full_disk.arrive()
    recording.write_drops(9)
    full_disk.remove()
    recording.finish("exit")
    assert contents(path).end["dropped_spans"] == 9


def place_below_a_file(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    return tmp_path / "file" / "runs"


def test_unusable_directory_is_reported_once_and_spans_are_counted(tmp_path, capsys):
    recording = Recording(str(place_below_a_file(tmp_path)))
    for microbatch in range(3):
        recording.write_spans(records(microbatch))
    recording.write_drops(3)
    recording.write_anchor_if_due()
    recording.finish("exit")
    assert recording.spans_lost == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_directory_that_appears_later_is_used(tmp_path, capsys):
    directory = place_below_a_file(tmp_path)
    recording = Recording(str(directory))
    recording.write_spans(records(0))
    (tmp_path / "file").unlink()
    recording.write_spans(records(1))
    recording.write_drops(recording.spans_lost)
    found = contents(recording)
    recording.close()
    assert found.spans["microbatch"].tolist() == [1]
    assert found.dropped_spans == 1
    assert "cannot record into" in capsys.readouterr().err


def test_deleted_recording_is_reported(recording, capsys):
    recording.write_spans(records(0))
    os.unlink(recording.path)
    recording.write_spans(records(1))
    recording.finish("exit")
    assert "was deleted while it was being written" in capsys.readouterr().err


def test_anchor_is_written_every_ten_seconds(recording, monkeypatch):
    now_s = 100.0
    monkeypatch.setattr(recording_module.time, "monotonic", lambda: now_s)
    recording.write_spans(records(0))
    for seconds in (0, 1, 9, 10, 11, 21):
        now_s = 100.0 + seconds
        recording.write_anchor_if_due()
    assert len(contents(recording).anchors) == 3


class Unspeakable:
    def __str__(self):
        raise ValueError("no words")


def circle():
    facts = []
    facts.append(facts)
    return facts


@pytest.mark.parametrize(
    "fact", [Unspeakable(), {("a", "tuple"): 1}, circle(), "x" * MAX_PAYLOAD_BYTES], ids=type
)
def test_fact_that_is_not_json_is_omitted_and_reported(recording, fact, capsys):
    recording.describe({"bad": fact, "good": 1})
    recording.write_spans(records(0))
    assert contents(recording).header == {"rank": 2, "good": 1}
    assert "cannot record the fact 'bad'" in capsys.readouterr().err


def test_other_facts_are_written_as_strings(recording, tmp_path):
    recording.describe({"where": tmp_path})
    recording.write_spans(records(0))
    assert contents(recording).header["where"] == str(tmp_path)


@pytest.mark.parametrize(
    "name", ["</script><img onerror>", "\u202eright to left", "nul\0", "\ud800 alone", "層"]
)
def test_any_text_is_a_valid_name(recording, name):
    recording.add_name(name)
    recording.write_spans(records(0))
    assert contents(recording).names == {1: name.replace("\ud800", "\\ud800")}  # half of a pair is no text


def test_many_long_names_fit_readable_frames(recording):
    names = [chr(0x10000 + number % 1000) * MAX_NAME_CHARACTERS for number in range(2000)]
    numbers = [recording.add_name(name) for name in names]
    recording.write_spans(records(0))
    found = contents(recording)
    assert [found.names[number] for number in numbers] == names
    assert found.gaps == []


def test_names_beyond_the_limit_share_the_last_entry(recording):
    numbers = [recording.add_name(str(number)) for number in range(1, MAX_NAMES + 3)]
    recording.write_spans(records(0))
    found = contents(recording)
    assert len(found.names) == MAX_NAMES
    assert numbers[-3:] == [MAX_NAMES] * 3
    assert found.names[MAX_NAMES] == MORE_NAMES
    assert found.names[MAX_NAMES - 1] == str(MAX_NAMES - 1)


def test_names_refused_by_a_full_disk_are_written_later(recording, full_disk):
    recording.write_spans(records(0))
    recording.add_name("a")
    full_disk.arrive()
    recording.write_spans(records(1))
    full_disk.remove()
    recording.add_name("b")
    recording.write_spans(records(2))
    assert contents(recording).names == {1: "a", 2: "b"}


def test_device_anchors_precede_the_next_spans_and_survive_a_full_disk(recording, full_disk):
    recording.write_spans(records(0))
    recording.add_device_anchor(DEVICE_ANCHOR.pack(1, 2, 3, 4))
    full_disk.arrive()
    recording.write_spans(records(1))
    full_disk.remove()
    recording.add_device_anchor(DEVICE_ANCHOR.pack(5, 6, 7, 8))
    recording.write_spans(records(2))
    assert contents(recording).device_anchors.tolist() == [(1, 2, 3, 4), (5, 6, 7, 8)]


def test_closed_stderr_does_not_stop_the_recording(recording, full_disk, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    recording.write_spans(records(0))
    full_disk.arrive()
    recording.write_spans(records(1))  # which is reported on stderr
    full_disk.remove()
    recording.write_spans(records(2))
    assert recording.spans_lost == 1
    assert contents(recording).spans["microbatch"].tolist() == [0, 2]


def test_json_frames_are_ascii(recording):
    recording.describe({"host": "höst"})
    recording.write_spans(records(0))
    with open(recording.path, "rb") as opened:
        header = next(item for item in scan_frames(opened.read()) if isinstance(item, Frame))
    assert json.loads(bytes(header.payload).decode("ascii"))["host"] == "höst"
