"""Spans of the training thread that have ended, and wait for the writer thread to pack them.

Packing a span where it ends costs the training 1 to 2 us, because everything that packs has been evicted from the
caches since the last one. Here it costs the training one tuple in a queue; the writer packs hundreds of them in a
loop, in 0.35 us each. Appending to a `deque` takes no lock that a signal handler could find taken.

Only one thread, the one that begins the steps, leaves its spans here, and at most `MOST_WAITING`: if the writer is
held up by a disk, further ones are packed where they end, into the bounded memory of buffers.py.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from stagescope.record.format import NONE
from stagescope.record.records import LANE_OF_CODE, action_tail, pack_plain_bytes, pack_span_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.record.compiled import Ring

Plain = tuple[bytes | None, int]
"""What the actions of one step have in common: the bytes of `records.plain_middle`, and the index of the thread."""

Ended = tuple[Any, ...]
"""An action that has ended: start, end, a `Plain`, and a tuple of kind, stage, micro-batch and chunk, which both exist
already. Or a span of few names: start, end, the bytes of `records.plain_middle`, stage, micro-batch, index of the
thread, kind, chunk, name. Or a message that was waited for: start, end, start and end of the wait, step, a `Plain`,
and a tuple of kind, stage, micro-batch, rank at the other end and bytes. Or any other span: the fields of a record in
order, without the lane.
"""
FIELDS_OF_ACTION, FIELDS_OF_MESSAGE, FIELDS_WITH_NAME = 4, 7, 9

MOST_WAITING = 1024
"""With as many that the writer has taken, they have at most 1 MiB."""
MOST_TAILS = 2**10


class Waiting:
    """The spans that wait in `queue` for the writer; those in a `Ring` are packed already.

    `packed` are the records of one that have been taken, `dropped` the spans that did not fit into it.
    """

    def __init__(self, queue: deque[Ended] | Ring) -> None:
        self._queue = queue
        self._taken: list[Ended] = []
        self.packed = b""
        self._tails: dict[tuple[int, int, int, int], bytes] = {}

    def take(self) -> list[Ended]:
        """Return all that wait now, or those that were taken before if they are not `done`."""
        queue, taken = self._queue, self._taken
        if not isinstance(queue, deque):
            self.packed = self.packed or queue.take()
        elif not taken:
            for _ in range(len(queue)):
                taken.append(queue.popleft())
        return taken

    @property
    def dropped(self) -> int:
        """How many spans could not be packed when they were appended."""
        return 0 if isinstance(self._queue, deque) else self._queue.dropped

    def done(self) -> None:
        """Forget those that were taken: they have been written."""
        self._taken.clear()
        self.packed = b""

    def pack(self, ended: Iterable[Ended]) -> tuple[bytes, int]:
        """Return the records of spans, and how many had a value that does not fit its field."""
        records, dropped = [], 0
        for each in ended:
            try:
                if len(each) == FIELDS_OF_ACTION:
                    start_ns, end_ns, (middle, thread), (kind, stage, microbatch, chunk) = each
                    rest = thread, kind, chunk, 0
                    tail = self._tails.get(rest) or self._tail(*rest)
                    records.append(pack_plain_bytes(start_ns, end_ns, middle, stage, microbatch, tail))
                elif len(each) == FIELDS_WITH_NAME:
                    rest = each[5:]
                    records.append(pack_plain_bytes(*each[:5], self._tails.get(rest) or self._tail(*rest)))
                elif len(each) == FIELDS_OF_MESSAGE:
                    *times, step, (_, thread), (kind, stage, microbatch, peer, size_bytes) = each
                    records.append(pack_span_bytes(*times, size_bytes, step, stage, microbatch, peer, NONE, 0, NONE,
                                                   thread, kind, LANE_OF_CODE[kind]))  # fmt: skip
                else:
                    records.append(pack_span_bytes(*each, LANE_OF_CODE[each[-1]]))
            except Exception:  # noqa: BLE001, PERF203  # the numbers are those of a framework, of any type
                dropped += 1
        return b"".join(records), dropped

    def _tail(self, thread: int, kind: int, chunk: int, name: int) -> bytes:
        tail = action_tail(thread, kind, chunk, name)
        if len(self._tails) < MOST_TAILS:
            self._tails[thread, kind, chunk, name] = tail
        return tail
