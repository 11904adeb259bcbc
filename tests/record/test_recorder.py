from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time

import pytest

from children import LIMIT_S, only_contents, run_child
from recorder_threads import remaining_threads
from stagescope.record import file as file_module
from stagescope.record.buffers import CHUNK_BYTES, RECORD_BYTES
from stagescope.record.format import NONE
from stagescope.record.recorder import Recorder
from stagescope.vocabulary.kinds import BY_NAME, STEP_CODE
from stagescope.vocabulary.steps import StepRange

FORWARD = BY_NAME["forward"].code
PER_CHUNK = CHUNK_BYTES // RECORD_BYTES


@pytest.fixture
def start(tmp_path):
    """Start a recorder that the fixture stops after the test."""
    begun = []

    def begin(**options):
        begun.append(Recorder(str(tmp_path), **options))
        return begun[-1]

    yield begin
    for recorder in begun:
        recorder.stop("test")


@pytest.fixture
def recorder(start):
    return start()


@pytest.fixture
def blocked_disk(monkeypatch):
    """Writes block until the event is set."""
    go_on, write = threading.Event(), os.write

    def wait_and_write(descriptor, data):
        if len(data) > 1:  # a single byte is a wake-up of the writer
            go_on.wait(LIMIT_S)
        return write(descriptor, data)

    monkeypatch.setattr(file_module.os, "write", wait_and_write)
    yield go_on
    go_on.set()


def test_all_fields_of_a_span_are_stored(recorder, tmp_path):
    recorder.begin_step(7)
    recorder.emit(FORWARD, 100, 200, 1, 2, 3, 4, 5, 110, 120, recorder.name_id("a"), 6)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    expected = {
        "start_ns": 100, "end_ns": 200, "wait_start_ns": 110, "wait_end_ns": 120, "bytes": 5, "step": 7, "stage": 1,
        "microbatch": 2, "peer": 4, "pair": 6, "name": 1, "chunk": 3, "thread": 0, "kind": FORWARD, "lane": 0,
    }  # fmt: skip
    assert {name: contents.spans[name].tolist() for name in expected} == {n: [v] for n, v in expected.items()}
    assert contents.names[1] == "a"


@pytest.mark.parametrize(
    ("kind", "lane"), [("forward", 0), ("send_forward", 1), ("grad_reduce", 1), ("other", 2)]
)
def test_span_is_on_the_lane_of_its_kind(recorder, tmp_path, kind, lane):
    recorder.emit(BY_NAME[kind].code, 1, 2)
    recorder.stop("test")
    assert only_contents(tmp_path).spans["lane"].tolist() == [lane]


def test_header_identifies_the_process(recorder, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("STAGESCOPE_RUN", "r1")
    recorder.describe(device="cpu")
    recorder.emit(FORWARD, 1, 2)
    recorder.stop("test")
    header = only_contents(tmp_path).header
    expected = {"rank": 3, "world_size": 8, "run": "r1", "pid": os.getpid(), "version": 2, "device": "cpu"}
    assert {name: header[name] for name in expected} == expected


def test_described_facts_override_the_environment(recorder, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    recorder.describe(rank=5)
    recorder.emit(FORWARD, 1, 2)
    recorder.stop("test")
    assert only_contents(tmp_path).header["rank"] == 5


@pytest.mark.parametrize("rank", ["", "abc", "-1"])
def test_non_numeric_rank_is_0(recorder, tmp_path, monkeypatch, rank):
    monkeypatch.setenv("RANK", rank)
    recorder.emit(FORWARD, 1, 2)
    recorder.stop("test")
    assert only_contents(tmp_path).header["rank"] == 0


def emit_numbered(recorder, count, stage=0):
    for microbatch in range(count):
        recorder.emit(FORWARD, microbatch, microbatch + 1, stage, microbatch)


def test_long_recording_is_complete(recorder, tmp_path):
    count = 10 * PER_CHUNK + 17
    for first in range(0, count, PER_CHUNK):
        for microbatch in range(first, min(first + PER_CHUNK, count)):
            recorder.emit(FORWARD, microbatch, microbatch + 1, 0, microbatch)
        assert recorder.flush()
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert contents.spans["microbatch"].tolist() == list(range(count))
    assert contents.end == {"spans": count, "dropped_spans": 0, "reason": "test"}


def test_burst_beyond_the_memory_is_counted_exactly(start, tmp_path, blocked_disk):
    recorder = start(capacity_bytes=3 * CHUNK_BYTES)
    emit_numbered(recorder, 5 * PER_CHUNK + 3)
    blocked_disk.set()
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert len(contents.spans) == 3 * PER_CHUNK
    assert contents.dropped_spans == contents.end["dropped_spans"] == 2 * PER_CHUNK + 3


def test_default_memory_is_five_mebibytes_with_a_blocked_disk(start, tmp_path, blocked_disk):
    recorder = start()
    emitted = 5 * 2**20 // RECORD_BYTES + 10_000
    emit_numbered(recorder, emitted)
    blocked_disk.set()
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert len(contents.spans) * RECORD_BYTES <= 5 * 2**20
    assert len(contents.spans) + contents.dropped_spans == emitted


def test_recording_continues_after_a_burst(start, tmp_path, blocked_disk):
    recorder = start(capacity_bytes=2 * CHUNK_BYTES)
    emit_numbered(recorder, 3 * PER_CHUNK)
    blocked_disk.set()
    assert recorder.flush()
    emit_numbered(recorder, 10, stage=1)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert (contents.spans["stage"] == 1).sum() == 10
    assert contents.dropped_spans == PER_CHUNK


@pytest.mark.parametrize("capacity_chunks", [2, 16])
def test_concurrent_threads_lose_no_uncounted_span(start, tmp_path, capacity_chunks):
    recorder = start(capacity_bytes=capacity_chunks * CHUNK_BYTES)
    threads, each = 6, 3 * PER_CHUNK + 5
    go = threading.Barrier(threads)

    def work(number):
        go.wait(LIMIT_S)
        emit_numbered(recorder, each, stage=number)

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in running:
            thread.start()
        for thread in running:
            thread.join(LIMIT_S)
    finally:
        sys.setswitchinterval(interval_s)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    spans = contents.spans
    assert len(spans) + contents.dropped_spans == threads * each
    assert len({(s, m) for s, m in zip(spans["stage"], spans["microbatch"], strict=True)}) == len(spans)
    threads_of_stage = {(int(s), int(t)) for s, t in zip(spans["stage"], spans["thread"], strict=True)}
    assert len(threads_of_stage) == len({stage for stage, _ in threads_of_stage})
    assert len(threads_of_stage) == len({thread for _, thread in threads_of_stage})


def test_short_lived_threads_release_their_memory(start, tmp_path):
    recorder = start(capacity_bytes=3 * CHUNK_BYTES)
    for number in range(20):
        thread = threading.Thread(target=recorder.emit, args=(FORWARD, 1, 2, 0, number))
        thread.start()
        thread.join(LIMIT_S)
        assert recorder.flush()
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert contents.spans["microbatch"].tolist() == list(range(20))
    assert contents.dropped_spans == 0


def test_threads_not_started_by_python_release_their_memory(tmp_path):
    done = run_child(
        """
        import ctypes, sys
        from stagescope.record.recorder import Recorder
        from stagescope.record.buffers import CHUNK_BYTES
        recorder = Recorder(sys.argv[1], capacity_bytes=3 * CHUNK_BYTES)
        START = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        pthread = ctypes.CDLL(None)
        for number in range(20):
            thread = ctypes.c_ulong()
            body = START(lambda _: recorder.emit(1, 1, 2, 0, number))
            assert pthread.pthread_create(ctypes.byref(thread), None, body, None) == 0
            assert pthread.pthread_join(thread, None) == 0
            recorder.flush()
        recorder.stop("test")
        """,
        tmp_path,
    )
    assert done.stderr == ""
    contents = only_contents(tmp_path)
    assert contents.spans["microbatch"].tolist() == list(range(20))
    assert contents.dropped_spans == 0


@pytest.mark.parametrize(
    "values",
    [
        {"stage": 2**31},
        {"microbatch": "three"},
        {"microbatch": 1.5},
        {"chunk": 2**15},
        {"name": -1},
        {"end_ns": 2**63},
        {"size_bytes": None},
        {"kind": 200},
        {"kind": "forward"},
        {"kind": []},
    ],
    ids=str,
)
def test_out_of_range_value_is_counted_as_dropped(recorder, tmp_path, values):
    recorder.emit(FORWARD, 1, 2, 0, 0)
    recorder.emit(**{"kind": FORWARD, "start_ns": 3, "end_ns": 4, **values})
    recorder.emit(FORWARD, 5, 6, 0, 1)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert contents.spans["start_ns"].tolist() == [1, 5]
    assert contents.dropped_spans == 1


def test_out_of_range_step_is_counted_as_dropped(recorder, tmp_path):
    recorder.begin_step(2**40)
    recorder.emit(FORWARD, 1, 2)
    recorder.begin_step(3)
    recorder.emit(FORWARD, 3, 4)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    assert contents.spans["step"].tolist() == [3]
    assert contents.dropped_spans == 1


def test_spans_after_stop_are_ignored(recorder, tmp_path):
    recorder.emit(FORWARD, 1, 2)
    recorder.stop("test")
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    emit_numbered(recorder, 3 * PER_CHUNK)
    thread = threading.Thread(target=emit_numbered, args=(recorder, PER_CHUNK + 1))
    thread.start()
    thread.join(LIMIT_S)
    recorder.flush_soon()
    assert recorder.flush()
    assert remaining_threads() == []
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_first_span_after_stop_starts_no_writer(recorder, tmp_path):
    recorder.stop("test")
    recorder.emit(FORWARD, 1, 2)
    assert list(tmp_path.iterdir()) == []
    assert remaining_threads() == []


def test_second_stop_writes_nothing(recorder, tmp_path):
    recorder.emit(FORWARD, 1, 2)
    recorder.stop("first")
    recorder.stop("second")
    assert only_contents(tmp_path).end["reason"] == "first"


def test_unusable_directory_is_reported_once_and_memory_stays_bounded(tmp_path, capsys):
    (tmp_path / "file").write_text("", encoding="utf-8")
    recorder = Recorder(str(tmp_path / "file" / "runs"), capacity_bytes=CHUNK_BYTES)
    emit_numbered(recorder, 5 * PER_CHUNK)
    assert recorder.flush()
    recorder.stop("test")
    assert capsys.readouterr().err.count("\n") == 1


def test_training_continues_when_no_file_can_be_opened(tmp_path, capsys, monkeypatch):
    def refuse():
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pipe", refuse)
    recorder = Recorder(str(tmp_path))
    emit_numbered(recorder, 3)
    monkeypatch.undo()
    emit_numbered(recorder, 3)
    recorder.stop("test")
    assert capsys.readouterr().err == "stagescope: cannot record: [Errno 24] Too many open files\n"
    assert list(tmp_path.iterdir()) == []


def test_training_continues_when_no_thread_can_be_started(tmp_path, capsys, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    descriptors = os.listdir("/proc/self/fd")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    recorder = Recorder(str(tmp_path))
    emit_numbered(recorder, 3)
    monkeypatch.undo()
    recorder.stop("test")
    assert capsys.readouterr().err == "stagescope: cannot record: can't start new thread\n"
    assert os.listdir("/proc/self/fd") == descriptors


def test_recording_signal_handler_loses_no_span(recorder, tmp_path):
    emitted_by_handler = 0

    def handler(*_):
        nonlocal emitted_by_handler
        emitted_by_handler += 1
        recorder.emit(
            FORWARD, 1, 2, 1, emitted_by_handler, name=recorder.name_id(f"n{emitted_by_handler % 5}")
        )

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        limit_s, emitted = time.monotonic() + 0.5, 0
        while time.monotonic() < limit_s:
            for _ in range(100):
                recorder.emit(FORWARD, 1, 2, 0, emitted)
                emitted += 1
            assert recorder.flush()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    spans = contents.spans
    assert emitted_by_handler > 0
    assert spans["microbatch"][spans["stage"] == 0].tolist() == list(range(emitted))
    assert sorted(spans["microbatch"][spans["stage"] == 1]) == list(range(1, emitted_by_handler + 1))
    assert contents.dropped_spans == 0


def test_equal_names_share_one_number(recorder):
    assert recorder.name_id("a") == recorder.name_id("a") == 1
    assert recorder.name_id("b") == 2
    assert recorder.name_id("x" * 10_000) == recorder.name_id("x" * 10_000) == 3


def test_half_of_a_surrogate_pair_is_stored_as_its_escape(recorder, tmp_path):
    recorder.emit(FORWARD, 1, 2, name=recorder.name_id("\ud800 é"))
    recorder.stop("test")
    assert only_contents(tmp_path).names[1] == "\\ud800 é"


def test_concurrent_names_match_the_string_table(recorder, tmp_path):
    def work():
        for number in range(300):
            recorder.emit(FORWARD, 1, 2, 0, number, name=recorder.name_id(f"name {number}"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    recorder.stop("test")
    contents = only_contents(tmp_path)
    named = {
        (contents.names[int(n)], int(m))
        for n, m in zip(*(contents.spans[f] for f in ("name", "microbatch")), strict=True)
    }
    assert named == {(f"name {number}", number) for number in range(300)}


def test_steps_are_counted_until_one_is_given(recorder):
    counted = [recorder.step]
    for step in (None, None, 10, None, 12):
        recorder.begin_step(step)
        counted.append(recorder.step)
    assert counted == [NONE, 0, 1, 10, 10, 12]


def test_recording_is_on_only_in_the_selected_steps(start):
    recorder = start(steps=StepRange(2, 4))
    states = []
    for _ in range(6):
        recorder.begin_step()
        states.append(recorder.enabled)
    assert states == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("steps", "enabled"), [(None, True), (StepRange(0, 2), True), (StepRange(1, 2), False)]
)
def test_spans_before_the_first_step_follow_step_0(start, steps, enabled):
    assert start(steps=steps).enabled is enabled


def test_end_of_step_emits_a_step_span(recorder, tmp_path):
    start_ns = recorder.begin_step(4)
    recorder.end_step(start_ns)
    recorder.stop("test")
    marker = only_contents(tmp_path).spans
    assert [marker[field].tolist() for field in ("kind", "step", "start_ns")] == [
        [STEP_CODE],
        [4],
        [start_ns],
    ]
    assert marker["end_ns"][0] >= start_ns


def test_ends_of_steps_and_the_writer_read_the_raw_clock(recorder, tmp_path):
    recorder.end_step(recorder.begin_step())
    time.sleep(0.02)
    recorder.end_step(recorder.begin_step())
    recorder.stop("test")
    contents = only_contents(tmp_path)
    readings = contents.raw_anchors
    offset_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - time.monotonic_ns()
    assert len(readings) >= 2
    assert (abs(readings["raw_ns"] - readings["monotonic_ns"] - offset_ns) < 10_000_000).all()
    ends_ns = contents.spans["end_ns"]
    assert abs(readings["monotonic_ns"][:, None] - ends_ns[None]).min(axis=0).max() < 10_000_000


def test_platforms_without_a_raw_clock_record_no_readings(recorder, tmp_path, monkeypatch):
    for module in ("recorder", "clock"):
        monkeypatch.setattr(f"stagescope.record.{module}.raw_ns", lambda: None)
    recorder.end_step(recorder.begin_step())
    recorder.stop("test")
    assert len(only_contents(tmp_path).spans) == 1
    assert not len(only_contents(tmp_path).raw_anchors)


def test_stopped_recorder_is_garbage_collected(tmp_path):
    done = run_child(
        """
        import gc, sys, weakref
        from stagescope.record.recorder import Recorder
        recorder = Recorder(sys.argv[1])
        recorder.emit(1, 1, 2)
        recorder.stop("test")
        gone = weakref.ref(recorder)
        del recorder
        gc.collect()
        sys.exit(0 if gone() is None else "still there")
        """,
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_process_memory_stays_within_the_budget(tmp_path):
    done = run_child(
        """
        import resource, sys, threading
        from stagescope.record.recorder import Recorder
        recorder = Recorder(sys.argv[1])
        recorder.emit(1, 1, 2)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(300_000):
            recorder.emit(1, number, number + 1, 0, number)
        recorder.stop("test")
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """,
        tmp_path,
    )
    assert done.stderr == ""
    grown_kib = int(done.stdout)
    assert grown_kib < 32 * 1024, f"{grown_kib} KiB on {resource.getpagesize()} byte pages"
    contents = only_contents(tmp_path)
    assert len(contents.spans) + contents.dropped_spans == 300_001
