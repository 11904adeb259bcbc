from __future__ import annotations

import os
import resource
import threading
import time

import pytest

from stagescope.ingest.recording.frames import read_contents
from stagescope.record.buffers import RECORD_BYTES, ChunkPool, ThreadBuffer, ThreadEnd
from stagescope.record.format import NONE, SPAN
from stagescope.record.recording import Recording
from stagescope.record.writer import Writer

WAIT_S = 30


@pytest.fixture
def pool():
    return ChunkPool()


@pytest.fixture
def signals():
    return []


@pytest.fixture
def buffers():
    return []


@pytest.fixture
def writer(tmp_path, pool, buffers, signals):
    writer = Writer(Recording(str(tmp_path)), pool, buffers, signals.append)
    yield writer
    writer.stop("test")


def put(buffer, *microbatches):
    """Write records into a buffer like a recording thread."""
    for microbatch in microbatches:
        chunk = buffer.chunk
        record = (1, 2, NONE, NONE, NONE, 0, 0, microbatch, NONE, NONE, 0, NONE, buffer.index, 1, 0)
        SPAN.pack_into(chunk.data, chunk.used, *record)
        chunk.used += RECORD_BYTES


def stored(tmp_path):
    (path,) = tmp_path.iterdir()
    return read_contents(path.read_bytes())


def new_buffer(writer, pool, index=0):
    buffer = ThreadBuffer(pool, index, writer.wake)
    writer._buffers.append(buffer)
    return buffer


def until(condition):
    """Wait for a condition that other threads fulfill."""
    limit_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit_s
        time.sleep(0.005)


def test_flush_stores_a_partially_filled_chunk(writer, pool, tmp_path):
    buffer = new_buffer(writer, pool)
    put(buffer, 0, 1)
    assert writer.flush(WAIT_S)
    put(buffer, 2)
    assert writer.flush(WAIT_S)
    assert stored(tmp_path).spans["microbatch"].tolist() == [0, 1, 2]


def test_partially_stored_chunk_is_not_stored_twice(writer, pool, tmp_path):
    buffer = new_buffer(writer, pool)
    put(buffer, 0, 1)
    assert writer.flush(WAIT_S)
    put(buffer, 2)
    buffer.turn_over()
    put(buffer, 3)
    assert writer.flush(WAIT_S)
    assert stored(tmp_path).spans["microbatch"].tolist() == [0, 1, 2, 3]


def test_spans_are_stored_without_a_flush(writer, pool, tmp_path):
    put(new_buffer(writer, pool), 0)
    until(lambda: list(tmp_path.iterdir()) and len(stored(tmp_path).spans))
    assert stored(tmp_path).spans["microbatch"].tolist() == [0]


def test_stop_stores_the_rest_and_an_end_frame(writer, pool, tmp_path):
    put(new_buffer(writer, pool), 5)
    writer.stop("because")
    assert stored(tmp_path).spans["microbatch"].tolist() == [5]
    assert stored(tmp_path).end == {"spans": 1, "dropped_spans": 0, "reason": "because"}


def test_chunk_of_an_ended_thread_returns_to_the_pool(tmp_path, buffers, signals):
    pool = ChunkPool(1)
    writer = Writer(Recording(str(tmp_path)), pool, buffers, signals.append)
    buffer = new_buffer(writer, pool)
    put(buffer, 4)
    buffer.dropped = 2
    end = ThreadEnd(buffer)
    assert pool.take() is None
    del end
    assert writer.flush(WAIT_S)
    assert pool.take() is buffer.chunk
    writer.stop("test")
    assert stored(tmp_path).spans["microbatch"].tolist() == [4]
    assert stored(tmp_path).dropped_spans == 2


def test_signals_are_reported_after_everything_is_stored(writer, pool, tmp_path, signals):
    buffer = new_buffer(writer, pool)
    put(buffer, 0)
    os.write(writer.wake_descriptor, bytes([15, 0, 2]))
    until(lambda: signals)
    until(lambda: len(signals) == 2)
    assert signals == [15, 2]
    assert len(stored(tmp_path).spans) == 1


def test_wake_never_blocks_or_fails(writer):
    for _ in range(100_000):
        writer.wake()
    assert writer.flush(WAIT_S)


def test_flush_times_out_when_the_disk_hangs(tmp_path, pool, buffers, signals):
    hanging, go_on = threading.Event(), threading.Event()

    class HangingDisk(Recording):
        def write_spans(self, records):
            hanging.set()
            go_on.wait(WAIT_S)
            super().write_spans(records)

    writer = Writer(HangingDisk(str(tmp_path)), pool, buffers, signals.append)
    put(new_buffer(writer, pool), 0)
    writer.wake()
    assert hanging.wait(WAIT_S)
    assert not writer.flush(0.01)
    go_on.set()
    assert writer.flush(WAIT_S)
    writer.stop("test")
    assert len(stored(tmp_path).spans) == 1


def test_writer_failure_is_reported_and_spans_are_stored_later(tmp_path, pool, buffers, signals, capsys):
    class Forgetful(Recording):
        failures = 2

        def write_spans(self, records):
            if self.failures and records:
                self.failures -= 1
                raise MemoryError
            super().write_spans(records)

    writer = Writer(Forgetful(str(tmp_path)), pool, buffers, signals.append)
    buffer = new_buffer(writer, pool)
    put(buffer, 0)
    buffer.turn_over()
    put(buffer, 1)
    while Forgetful.failures and writer._recording.failures:
        assert writer.flush(WAIT_S)
    assert writer.flush(WAIT_S)
    writer.stop("test")
    assert stored(tmp_path).spans["microbatch"].tolist() == [0, 1]
    assert capsys.readouterr().err.count("\n") == 1


def test_process_with_more_than_1024_open_files_is_recorded(tmp_path, pool, buffers, signals):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip("needs more open files than this system allows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]
    try:
        writer = Writer(Recording(str(tmp_path)), pool, buffers, signals.append)
        assert writer.wake_descriptor > 1024
        put(new_buffer(writer, pool), 0)
        assert writer.flush(WAIT_S)
        writer.stop("test")
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(stored(tmp_path).spans) == 1


def test_wake_of_a_stopped_writer_writes_to_no_other_file(tmp_path, pool, buffers, signals):
    writer = Writer(Recording(str(tmp_path / "runs")), pool, buffers, signals.append)
    writer.stop("test")
    others = [os.open(tmp_path / str(number), os.O_CREAT | os.O_WRONLY) for number in range(8)]
    writer.wake()
    del writer
    for descriptor in others:
        os.close(descriptor)
    assert all((tmp_path / str(number)).stat().st_size == 0 for number in range(8))


def test_pipe_is_closed_when_unreachable(tmp_path, buffers, signals):
    before = sorted(os.listdir("/proc/self/fd"))
    writer = Writer(Recording(str(tmp_path)), ChunkPool(), buffers, signals.append)
    writer.stop("test")
    del writer
    assert sorted(os.listdir("/proc/self/fd")) == before
