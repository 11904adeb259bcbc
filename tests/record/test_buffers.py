from __future__ import annotations

import threading

import pytest

from stagescope.record.buffers import (
    CHUNK_BYTES,
    DEFAULT_CAPACITY_BYTES,
    LAST_RECORD,
    RECORD_BYTES,
    ChunkPool,
    ThreadBuffer,
    ThreadEnd,
)


def take_all(pool):
    return list(iter(pool.take, None))


def nothing():
    return None


def test_pool_hands_out_at_most_five_mebibytes():
    chunks = take_all(ChunkPool())
    assert len(chunks) * CHUNK_BYTES <= DEFAULT_CAPACITY_BYTES == 5 * 2**20
    assert (len(chunks) + 1) * CHUNK_BYTES > DEFAULT_CAPACITY_BYTES


def test_chunk_size_is_a_multiple_of_the_record_size():
    assert CHUNK_BYTES % RECORD_BYTES == 0
    assert LAST_RECORD + RECORD_BYTES == CHUNK_BYTES


def test_pool_has_at_least_one_chunk():
    assert len(take_all(ChunkPool(1))) == 1


def test_returned_chunk_is_reused_empty():
    pool = ChunkPool(CHUNK_BYTES)
    chunk = pool.take()
    chunk.used, chunk.flushed = 200, 100
    pool.give_back(chunk)
    assert pool.take() is chunk
    assert (chunk.used, chunk.flushed) == (0, 0)


def test_closed_pool_hands_out_nothing_and_frees_its_memory():
    pool = ChunkPool()
    chunk = pool.take()
    pool.close()
    pool.give_back(chunk)
    assert take_all(pool) == []


def test_concurrent_threads_never_share_a_chunk():
    pool = ChunkPool(100 * CHUNK_BYTES)
    taken = []
    threads = [threading.Thread(target=lambda: taken.extend(take_all(pool))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(set(map(id, taken))) == 100


def test_full_chunk_is_queued_and_wakes_the_writer():
    pool, woken = ChunkPool(2 * CHUNK_BYTES), []
    buffer = ThreadBuffer(pool, 0, lambda: woken.append(True))
    first = buffer.chunk
    buffer.turn_over()
    assert list(pool.full) == [first]
    assert buffer.chunk is not first
    assert woken == [True]


def test_span_without_free_space_is_counted():
    pool = ChunkPool(CHUNK_BYTES)
    buffer = ThreadBuffer(pool, 0, nothing)
    buffer.turn_over()
    assert [buffer.find_space() for _ in range(3)] == [None] * 3
    assert buffer.dropped == 3


def test_space_is_available_after_the_writer_emptied_a_chunk():
    pool = ChunkPool(CHUNK_BYTES)
    buffer = ThreadBuffer(pool, 0, nothing)
    buffer.turn_over()
    pool.give_back(pool.full.popleft())
    assert buffer.find_space() is buffer.chunk is not None
    assert buffer.dropped == 0


class Interrupted(ChunkPool):
    """A pool in which a signal handler records a span whenever a chunk is requested."""

    handler = staticmethod(nothing)

    def take(self):
        handler, self.handler = self.handler, nothing
        handler()
        return super().take()


def test_chunk_is_returned_when_a_signal_handler_installed_one_first():
    pool = Interrupted(2 * CHUNK_BYTES)
    buffer = ThreadBuffer(pool, 0, nothing)
    pool.full.append(buffer.chunk)
    buffer.chunk = None
    pool.handler = buffer.find_space
    found = buffer.find_space()
    assert found is buffer.chunk
    pool.give_back(pool.full.popleft())
    assert len(take_all(pool)) == 1


def test_memory_error_drops_the_span(monkeypatch):
    def no_memory():
        raise MemoryError

    pool = ChunkPool(CHUNK_BYTES)
    monkeypatch.setattr("stagescope.record.buffers.Chunk", no_memory)
    assert pool.take() is None
    monkeypatch.undo()
    assert pool.take() is not None


@pytest.mark.parametrize("ends", [True, False])
def test_thread_end_is_detected_by_its_local_storage(ends):
    buffer = ThreadBuffer(ChunkPool(), 0, nothing)
    local, go_on = threading.local(), threading.Event()

    def work():
        local.end = ThreadEnd(buffer)
        if not ends:
            go_on.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    if ends:
        thread.join()
    assert buffer.ended is ends
    go_on.set()
    thread.join()
    assert buffer.ended
