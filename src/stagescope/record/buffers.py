"""Bounded memory for spans: each thread fills its own chunks, the writer thread empties them.

Recording a span takes no lock. A chunk belongs to one thread, which packs a record and then advances `used`; the
writer reads `used` before it copies, so it only sees complete records. The pool hands out at most `capacity_bytes`;
when it is exhausted, spans are counted as dropped. The pool takes no lock either: a signal handler may interrupt a
thread anywhere in this module, and a lock held by that thread would block it forever.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from stagescope.record.format import SPAN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stagescope.record.waiting import Waiting

RECORD_BYTES = SPAN.size
CHUNK_BYTES = RECORD_BYTES * 1024
LAST_RECORD = CHUNK_BYTES - RECORD_BYTES
DEFAULT_CAPACITY_BYTES = 5 * 2**20  # with code and tables 8 MiB per process, however slow the disk is
THREAD_INDEXES = 2**16
"""Thread indexes wrap around here, because the record's thread field has 16 bits."""


class Chunk:
    """A fixed-size block of packed records: `used` bytes are filled, `flushed` bytes have been handed to the disk."""

    __slots__ = ("data", "flushed", "used")

    def __init__(self) -> None:
        self.data = bytearray(CHUNK_BYTES)
        self.used = 0
        self.flushed = 0


class ChunkPool:
    """Hands out chunks up to a fixed total (at least one) and takes them back.

    `full` are chunks for the writer, `waiting` are spans that it has to pack.
    """

    def __init__(self, capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._free: deque[Chunk] = deque()
        self._permits = deque(range(max(1, capacity_bytes // CHUNK_BYTES)))
        self._closed = False
        self.full: deque[Chunk] = deque()
        self.waiting: Waiting | None = None

    def take(self) -> Chunk | None:
        """Return an empty chunk, or None if all are in use."""
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def give_back(self, chunk: Chunk) -> None:
        """Take an emptied chunk back."""
        chunk.used = chunk.flushed = 0
        if not self._closed:
            self._free.append(chunk)

    def close(self) -> None:
        """Release the memory and hand out no more chunks: later spans are dropped."""
        self._closed = True
        self._permits.clear()
        self._free.clear()

    def _make(self) -> Chunk | None:
        try:
            permit = self._permits.pop()
        except IndexError:
            return None
        try:
            return Chunk()
        except MemoryError:
            self._permits.append(permit)
            return None


class Seen:
    """Whether a span was recorded recently.

    A separate object, because every span sets the flag and an attribute of the recorder would take longer to reach.
    """

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans = False


class ThreadBuffer:
    """The chunk that one thread is filling, and the number of spans that did not fit."""

    __slots__ = (
        "_pool",
        "_wake",
        "action_tails",
        "chunk",
        "dropped",
        "ended",
        "index",
        "plain_tails",
        "seen",
    )

    def __init__(
        self,
        pool: ChunkPool,
        index: int,
        wake: Callable[[], None],
        plain_tails: Mapping[str, bytes] | None = None,
        seen: Seen | None = None,
    ) -> None:
        self._pool = pool
        self._wake = wake
        self.index = index
        self.plain_tails = plain_tails or {}
        self.action_tails: dict[tuple[int, int, int], bytes] = {}
        self.seen = seen or Seen()
        self.ended = False
        self.chunk = pool.take()
        self.dropped = 0

    def turn_over(self) -> None:
        """Hand the full chunk to the writer and continue in an empty one, if there is one."""
        fresh = self._pool.take()
        full, self.chunk = (
            self.chunk,
            fresh,
        )  # replaced before it is queued: a signal handler may record a span on any line
        if full is not None:
            self._pool.full.append(full)
        self._wake()

    def find_space(self) -> Chunk | None:
        """Return a chunk with free space after the last one was used up, or None, counting one more dropped span."""
        fresh = self._pool.take()
        if self.chunk is None:
            self.chunk = fresh
        elif fresh is not None:  # a signal handler has installed one meanwhile
            self._pool.give_back(fresh)
        if self.chunk is None:
            self.dropped += 1
        return self.chunk


class ThreadEnd:
    """Stored in a thread's local storage, so its deletion marks the end of the thread, whichever code started it.

    `Thread.is_alive` does not work here: it stays true forever for a thread that was started from C++.
    """

    __slots__ = ("_buffer",)

    def __init__(self, buffer: ThreadBuffer) -> None:
        self._buffer = buffer

    def __del__(self) -> None:
        self._buffer.ended = True
