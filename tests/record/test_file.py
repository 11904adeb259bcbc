from __future__ import annotations

import errno
import os
from contextlib import contextmanager

import pytest

from stagescope.record import file as file_module
from stagescope.record.file import FrameFile, free_names
from stagescope.record.format import (
    HEADER,
    MAX_PAYLOAD_BYTES,
    SPANS,
    Frame,
    encode_frame,
    scan_frames,
)

FRAMES = [b"a" * 10, b"b" * 300, b"c", b"d" * 50, b"", b"e" * 77]


class FaultyWrites:
    """Replaces os.write and os.ftruncate: write number n fails as given by `fault`, all others write everything."""

    def __init__(self, fault, at):
        self.fault, self.at, self.calls = fault, at, 0
        self.write, self.truncate = os.write, os.ftruncate
        self.truncates = True

    def __call__(self, descriptor, data):
        self.calls += 1
        if self.calls - 1 != self.at:
            return self.write(descriptor, data)
        if isinstance(self.fault, int):
            return self.write(descriptor, data[: self.fault])
        raise OSError(self.fault.errno, "planted")

    def ftruncate(self, descriptor, size):
        if not self.truncates:
            raise OSError(errno.EIO, "planted")
        self.truncate(descriptor, size)


def refusal(number):
    return OSError(number, os.strerror(number))


FAULTS = {
    "disk full": refusal(errno.ENOSPC),
    "device error": refusal(errno.EIO),
    "interrupted": refusal(errno.EINTR),
    "quota": refusal(errno.EDQUOT),
    "short by all but one": 1,
    "short in the head": 13,
    "nothing written": 0,
}


@pytest.fixture
def frame_file(tmp_path):
    frame_file = FrameFile(str(tmp_path), free_names("rank-00003"))
    yield frame_file
    frame_file.close()


def payloads(path) -> list[bytes]:
    """Return the payloads of a file that consists of complete frames only."""
    with open(path, "rb") as opened:
        items = list(scan_frames(opened.read()))
    assert all(isinstance(item, Frame) for item in items), items
    return [bytes(item.payload) for item in items]


@contextmanager
def planted(monkeypatch, fault, at):
    writes = FaultyWrites(fault, at)
    with monkeypatch.context() as patch:
        patch.setattr(file_module.os, "write", writes)
        patch.setattr(file_module.os, "ftruncate", writes.ftruncate)
        yield writes


def test_appended_frames_are_numbered(frame_file):
    assert frame_file.append(SPANS, b"one")
    assert frame_file.append_json(HEADER, {"rank": 3})
    with open(frame_file.path, "rb") as opened:
        found = [(f.sequence, f.type, bytes(f.payload)) for f in scan_frames(opened.read())]
    assert found == [(0, SPANS, b"one"), (1, HEADER, b'{"rank":3}')]


def test_file_is_named_after_its_rank_and_private(frame_file, tmp_path):
    assert frame_file.path == str(tmp_path / "rank-00003.sscope")
    assert os.stat(frame_file.path).st_mode & 0o777 == 0o600


@pytest.mark.usefixtures("frame_file")
def test_taken_name_is_extended_by_the_process_id(tmp_path):
    others = [FrameFile(str(tmp_path), free_names("rank-00003")) for _ in range(2)]
    for other in others:
        other.close()
    own = f"rank-00003-{os.getpid()}"
    assert [other.path for other in others] == [
        str(tmp_path / name) for name in (f"{own}.sscope", f"{own}-1.sscope")
    ]


def test_existing_files_are_never_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(file_module, "MAX_NAME_TRIES", 2)
    for _ in range(2):
        FrameFile(str(tmp_path), free_names("rank-00000")).close()
    with pytest.raises(FileExistsError, match="too many recordings of this process"):
        FrameFile(str(tmp_path), free_names("rank-00000"))


def test_missing_directory_is_created(tmp_path):
    FrameFile(str(tmp_path / "a" / "b"), free_names("rank-00000")).close()
    assert len(list((tmp_path / "a" / "b").iterdir())) == 1


@pytest.mark.parametrize("at", range(len(FRAMES)))
@pytest.mark.parametrize("fault", FAULTS)
def test_failed_write_leaves_only_complete_frames(tmp_path, monkeypatch, fault, at):
    frame_file = FrameFile(str(tmp_path), free_names("rank-00000"))
    with planted(monkeypatch, FAULTS[fault], at):
        stored = [payload for payload in FRAMES if frame_file.append(SPANS, payload)]
    frame_file.close()
    assert payloads(frame_file.path) == stored
    assert len(stored) >= len(FRAMES) - 1


@pytest.mark.parametrize("short", [1, 13, 20, 25])
def test_short_write_is_continued(frame_file, monkeypatch, short):
    with planted(monkeypatch, short, at=0):
        assert frame_file.append(SPANS, b"x" * 100)
    assert payloads(frame_file.path) == [b"x" * 100]


class ShortThenRefused(FaultyWrites):
    """Write number n is partial and the next one fails: a disk that fills up inside a frame."""

    def __call__(self, descriptor, data):
        if self.calls == self.at + 1:
            self.calls += 1
            raise OSError(errno.ENOSPC, "planted")
        return super().__call__(descriptor, data)


@pytest.mark.parametrize("at", range(len(FRAMES)))
@pytest.mark.parametrize("truncates", [True, False])
def test_partial_frame_damages_no_other_frame(tmp_path, monkeypatch, truncates, at):
    frame_file, writes = FrameFile(str(tmp_path), free_names("rank-00000")), ShortThenRefused(7, at)
    writes.truncates = truncates
    monkeypatch.setattr(file_module.os, "write", writes)
    monkeypatch.setattr(file_module.os, "ftruncate", writes.ftruncate)
    stored = [payload for payload in FRAMES if frame_file.append(SPANS, payload)]
    frame_file.close()
    with open(frame_file.path, "rb") as opened:
        items = list(scan_frames(opened.read()))
    assert [bytes(item.payload) for item in items if isinstance(item, Frame)] == stored
    assert len(stored) == len(FRAMES) - 1
    assert any(not isinstance(item, Frame) for item in items) is not truncates


def test_later_truncation_keeps_frames_after_a_refused_truncation(tmp_path, monkeypatch):
    frame_file, writes = FrameFile(str(tmp_path), free_names("rank-00000")), ShortThenRefused(7, at=0)
    writes.truncates = False
    monkeypatch.setattr(file_module.os, "write", writes)
    monkeypatch.setattr(file_module.os, "ftruncate", writes.ftruncate)
    outcomes = [frame_file.append(SPANS, b"lost"), frame_file.append(SPANS, b"kept" * 20)]
    writes.truncates, writes.calls = True, 0
    outcomes += [frame_file.append(SPANS, b"cut"), frame_file.append(SPANS, b"last")]
    frame_file.close()
    with open(frame_file.path, "rb") as opened:
        found = [bytes(i.payload) for i in scan_frames(opened.read()) if isinstance(i, Frame)]
    assert outcomes == [False, True, False, True]
    assert found == [b"kept" * 20, b"last"]


def test_oversized_payload_is_refused(frame_file):
    assert not frame_file.append(SPANS, b"\0" * (MAX_PAYLOAD_BYTES + 1))
    assert payloads(frame_file.path) == []


def test_closed_file_refuses_frames_silently(frame_file):
    frame_file.close()
    assert not frame_file.append(SPANS, b"late")
    frame_file.sync()
    frame_file.close()
    assert not frame_file.is_deleted()


def test_deleted_file_is_detected(frame_file):
    assert not frame_file.is_deleted()
    os.unlink(frame_file.path)
    assert frame_file.is_deleted()


def test_full_disk_keeps_complete_frames_and_accepts_more_later(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 16_000)
    frame_file = FrameFile(str(small_disk), free_names("rank-00000"))
    frames = [bytes([number]) * 5_000 for number in range(40)]
    stored = [frame for frame in frames if frame_file.append(SPANS, frame)]
    assert 5 <= len(stored) <= 12
    ballast.unlink()
    assert frame_file.append(SPANS, b"space again")
    frame_file.close()
    assert payloads(frame_file.path) == [*stored, b"space again"]


def test_frame_that_fills_the_disk_is_removed(small_disk):
    frame_file = FrameFile(str(small_disk), free_names("rank-00000"))
    while frame_file.append(SPANS, b"\1" * 3_001):
        continue
    frame_file.close()
    size = os.stat(frame_file.path).st_size
    assert size % len(encode_frame(0, SPANS, b"\1" * 3_001)) == 0
    assert size > 0
