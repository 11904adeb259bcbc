"""Fault injection into whole recordings: acknowledged spans are present, nothing is wrong, every loss is counted.

docs/reliability.md lists all injected faults and their tests.
"""

from __future__ import annotations

import errno
import json
import os
import random

import pytest

from children import run_child
from recordings import span_record
from stagescope import api as workflow
from stagescope.ingest.recording.frames import read_contents
from stagescope.ingest.recording.reader import read_recordings
from stagescope.record import file as file_module
from stagescope.record.format import Frame, scan_frames
from stagescope.record.recorder import Recorder
from stagescope.record.recording import Recording
from stagescope.record.retention import MIN_MAX_BYTES
from stagescope.vocabulary.kinds import BY_NAME

FORWARD = BY_NAME["forward"].code

KILLED = """
import json, mmap, os, random, signal, struct, sys, time, warnings
import stagescope.record as record
from stagescope.record import session
warnings.simplefilter("ignore")
directory, kills = sys.argv[1], int(sys.argv[2])

def train(place, stored, max_bytes):
    record.start(place, max_bytes=max_bytes)
    number = 0
    while True:
        for _ in range(700 if max_bytes else 7):
            with record.span("forward", microbatch=number, stage=0):
                number += 1
        if session.recorder.flush():
            stored[:8] = struct.pack("<q", number)

acknowledged = []
for kill in range(kills):
    stored = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        train(os.path.join(directory, str(kill)), stored, 2**20 if kill % 2 else 0)
    limit_s = time.monotonic() + 60
    while kill % 8 > 1 and stored[:8] == bytes(8) and time.monotonic() < limit_s:
        time.sleep(0.0005)  # most are killed after something was acknowledged, some at any moment of their lives
    time.sleep(random.Random(kill).uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged += struct.unpack("<q", stored[:8])
print(json.dumps(acknowledged))
"""


@pytest.mark.parametrize("kills", [40, pytest.param(200, marks=pytest.mark.exhaustive)])
def test_random_kills_lose_no_acknowledged_span(tmp_path, kills):
    done = run_child(KILLED, tmp_path, kills, timeout=120)
    assert done.returncode == 0, done.stderr
    acknowledged = json.loads(done.stdout)
    assert sum(count > 0 for count in acknowledged) > kills / 2
    for kill, count in enumerate(acknowledged):
        files = sorted((tmp_path / str(kill)).glob("*.sscope")) if count else []
        if files:
            check_killed(files, count, bounded=kill % 2 == 1)
        else:
            assert count == 0


def check_killed(files, acknowledged, *, bounded):
    timeline = read_recordings(files)
    numbers = timeline.spans.sort("start_ns")["microbatch"].to_list()
    notes = dict(timeline.diagnostics.select("code", "count").rows())
    discarded = notes.get("spans.discarded", 0)
    assert numbers == list(range(discarded, discarded + len(numbers)))
    assert discarded + len(numbers) >= acknowledged
    assert not discarded or bounded
    assert not bounded or sum(file.stat().st_size for file in files) <= 2**20
    assert notes.keys() <= {"spans.discarded", "recording.no_end", "frames.truncated"}, notes


class FailingCalls:
    """Replaces a system call: call number n fails as planned or writes only a part; all others are executed."""

    def __init__(self, call, fault, at):
        self.call, self.fault, self.at, self.calls = call, fault, at, 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls - 1 != self.at:
            return self.call(*arguments, **options)
        if self.fault == "short":
            descriptor, data = arguments
            return self.call(descriptor, data[: len(data) // 2])
        raise OSError(self.fault, os.strerror(self.fault))


FAULTS = {
    "write": (errno.EIO, errno.EINTR, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, "short"),
    "open": (errno.EIO, errno.EMFILE, errno.EROFS, errno.ENOENT),
    "fdatasync": (errno.EIO,),
    "unlink": (errno.EIO, errno.EROFS),
    "close": (errno.EIO,),
    "ftruncate": (errno.EIO,),
    "makedirs": (errno.EROFS, errno.ENOSPC),
}
"""The system calls that a recording makes, and the failures of each."""
BATCH, BATCHES = 800, 24
SPANS = [
    b"".join(span_record(microbatch=batch * BATCH + at, name=batch + 1) for at in range(BATCH))
    for batch in range(BATCHES)
]


def record_all(directory, max_bytes):
    """Return how many spans a small recording with several segments has stored and lost."""
    recording = Recording(str(directory), max_bytes)
    recording.describe({"rank": 0, "host": "h", "boot": "b", "pid": 1, "process_start_ns": 1})
    for batch in range(BATCHES):
        recording.add_name(f"name {batch}")
        recording.write_spans(SPANS[batch])
        recording.write_drops(recording.spans_lost)
        recording.write_anchor_if_due()
    recording.write_drops(recording.spans_lost)
    recording.finish("exit")
    return recording.spans_written, recording.spans_lost


@pytest.mark.parametrize(("call", "fault"), [(call, fault) for call in FAULTS for fault in FAULTS[call]])
@pytest.mark.parametrize("max_bytes", [0, MIN_MAX_BYTES])
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_every_span_is_stored_or_counted_when_a_system_call_fails(  # noqa: PLR0917  # parametrized
    tmp_path, monkeypatch, call, fault, max_bytes, stride
):
    """The first calls fail one after the other, of the later ones every seventh (all in the exhaustive run)."""
    at, made = 0, 1
    while at < made:
        directory = tmp_path / f"{at}"
        calls = FailingCalls(getattr(os, call), fault, at)
        with monkeypatch.context() as patch:
            patch.setattr(file_module.os, call, calls)
            stored, lost = record_all(directory, max_bytes)
        assert stored + lost == BATCH * BATCHES
        assert lost <= BATCH * (1 if call in {"write", "open", "makedirs"} else 2)
        check_stored(directory, stored, lost)
        made, at = min(calls.calls, 40), at + (1 if at < 3 else stride)


def check_stored(directory, stored, lost):
    timeline = read_recordings(sorted(directory.iterdir()))
    notes = dict(timeline.diagnostics.select("code", "count").rows())
    discarded = notes.get("spans.discarded", 0)
    dropped = notes.get("spans.dropped", 0)
    numbers = timeline.spans["microbatch"].to_list()
    assert len(numbers) == len(set(numbers)) == stored - discarded
    assert dropped == lost
    assert not any(code.endswith(".missing") for code in notes), notes
    named = timeline.spans["name"].str.strip_prefix("name ").cast(int)
    assert (named == timeline.spans["microbatch"] // BATCH).all()


def test_full_disk_loses_only_counted_spans_and_recording_continues(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 48_000)
    recorder = Recorder(str(small_disk))
    for number in range(900):
        recorder.emit(FORWARD, number, number + 1, 0, number)
        if number % 100 == 0:
            recorder.flush()
        if number == 600:
            ballast.unlink()
    recorder.stop("test")
    [file] = small_disk.iterdir()
    contents = read_contents(file.read_bytes())
    numbers = contents.spans["microbatch"].tolist()
    assert len(numbers) + contents.dropped_spans == 900
    assert contents.dropped_spans > 0
    assert numbers[-1] == 899
    assert len(set(numbers)) == len(numbers)
    assert contents.gaps == []
    assert contents.end is not None


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(200), marks=pytest.mark.exhaustive)])
def test_power_loss_keeps_synced_data_and_never_yields_wrong_spans(tmp_path, monkeypatch, seeds):
    """Blocks written after the last sync may be missing in any combination."""
    synchronized = []
    monkeypatch.setattr(
        file_module.os, "fdatasync", lambda descriptor: synchronized.append(os.fstat(descriptor).st_size)
    )
    recording = Recording(str(tmp_path))
    recording.describe({"rank": 0})
    spans = [span_record(start_ns=number, end_ns=number + 1, microbatch=number) for number in range(1500)]
    for begin in range(0, 1500, 50):
        recording.write_spans(b"".join(spans[begin : begin + 50]))
        if begin == 500:
            recording.write_anchor_if_due()
    recording.close()
    [path] = tmp_path.iterdir()
    data, block = path.read_bytes(), 4096
    safe = read_contents(data[: synchronized[-1]]).spans["microbatch"].tolist()
    assert safe == list(range(550))
    for seed in seeds:
        damaged, chance = bytearray(data), random.Random(seed)  # noqa: S311  # reproducible, not secret
        for at in range(synchronized[-1] // block + 1, len(data) // block + 1):
            if chance.random() < 0.5:
                damaged[at * block : (at + 1) * block] = bytes(len(data[at * block : (at + 1) * block]))
        cut = chance.randrange(synchronized[-1], len(data))
        found = read_contents(bytes(damaged[:cut])).spans
        assert found["microbatch"][: len(safe)].tolist() == safe
        assert set(found["microbatch"].tolist()) <= set(range(1500))
        assert (found["end_ns"] - found["start_ns"] == 1).all()
        frames = [item for item in scan_frames(bytes(damaged[:cut])) if isinstance(item, Frame)]
        assert all(bytes(frame.payload) in data for frame in frames)


def test_burst_beyond_disk_speed_is_counted_exactly(tmp_path):
    recorder, count = Recorder(str(tmp_path), max_bytes=16 * 2**20), 1_000_000
    emit = recorder.emit
    for number in range(count):
        emit(FORWARD, number, number, 0, number)
    recorder.stop("test")
    timeline = workflow.read(tmp_path)
    notes = timeline.diagnostics
    counted = notes.filter(notes["code"].is_in(["spans.discarded", "spans.dropped"]))["count"].sum()
    assert timeline.spans.height + counted == count
    assert timeline.spans["microbatch"].is_unique().all()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 16 * 2**20
