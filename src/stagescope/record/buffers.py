"""Bounded memory for spans: each thread fills chunks of its own, the writer thread empties them.

No lock is taken for a span. A chunk belongs to one thread, which packs a record and then raises `used`;
the writer reads `used` and then copies, so it only ever sees whole records. The pool hands out at most
`capacity_bytes`; when it is empty spans are counted as dropped instead of being kept.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from stagescope.vocabulary.recording import SPAN

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD_BYTES = SPAN.size
CHUNK_BYTES = RECORD_BYTES * 1024
LAST_RECORD = CHUNK_BYTES - RECORD_BYTES
DEFAULT_CAPACITY_BYTES = 8 * 2**20


class Chunk:
    """A fixed block of packed records: `used` bytes are filled, `flushed` bytes are on their way to disk."""

    __slots__ = ("data", "flushed", "used")

    def __init__(self) -> None:
        self.data = bytearray(CHUNK_BYTES)
        self.used = 0
        self.flushed = 0


class ChunkPool:
    """Hands out chunks up to a fixed total and takes them back."""

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._left = max(1, capacity_bytes // CHUNK_BYTES)
        self._free: list[Chunk] = []
        self._lock = threading.Lock()
        self.full: deque[Chunk] = deque()

    def take(self) -> Chunk | None:
        """Return an empty chunk, or None when all are in use."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._left:
                self._left -= 1
                return Chunk()
        return None

    def give_back(self, chunk: Chunk) -> None:
        """Take an emptied chunk back."""
        chunk.used = chunk.flushed = 0
        with self._lock:
            self._free.append(chunk)


class ThreadBuffer:
    """The chunk that one thread is filling, and how many spans found no room."""

    __slots__ = ("_pool", "_wake", "chunk", "dropped", "index", "thread")

    def __init__(self, pool: ChunkPool, index: int, wake: Callable[[], None]) -> None:
        self._pool = pool
        self._wake = wake
        self.index = index
        self.thread = threading.current_thread()
        self.chunk = pool.take()
        self.dropped = 0

    def turn_over(self) -> None:
        """Hand the full chunk to the writer and go on in an empty one, if there is one."""
        if self.chunk is not None:
            self._pool.full.append(self.chunk)
        self.chunk = self._pool.take()
        self._wake()

    def find_room(self) -> Chunk | None:
        """Return a chunk with room after none was left, or None and one more dropped span."""
        self.chunk = self._pool.take()
        if self.chunk is None:
            self.dropped += 1
        return self.chunk
