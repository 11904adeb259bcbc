"""The writer thread, the only place where the recorder accesses the disk.

It sleeps in poll() on a pipe. It wakes up twice a second, for a full chunk, for a flush, for the end of the recording
and for a signal (the C-level handler writes its number into the pipe even while the main thread is blocked inside a
library). Waking it costs the training a non-blocking write of one byte.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import TYPE_CHECKING

from stagescope.record.buffers import CHUNK_BYTES, RECORD_BYTES
from stagescope.record.records import is_packing_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.buffers import Chunk, ChunkPool, ThreadBuffer
    from stagescope.record.recording import Recording
    from stagescope.record.waiting import Ended

FLUSH_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 5.0
CLOSED = -1
RECORDS_OF_CHUNK = CHUNK_BYTES // RECORD_BYTES
_WAKE = b"\0"


class Writer:
    """Moves the content of all thread buffers into one recording until it is stopped."""

    def __init__(
        self,
        recording: Recording,
        pool: ChunkPool,
        buffers: list[ThreadBuffer],
        on_signal: Callable[[int], None],
        on_stored: Callable[[], object] = bool,
    ) -> None:
        """Start the thread. `buffers` may grow at any time. Raises OSError or RuntimeError on failure.

        `on_stored` is called after everything has been written, twice a second.
        """
        self._recording = recording
        self._pool = pool
        self._buffers = buffers
        self._on_signal = on_signal
        self._on_stored = on_stored
        self._waiting = pool.waiting
        self._dropped_by_ended_threads = self._dropped_while_packing = 0
        self._stop_reason: str | None = None
        self._flushes_wanted = 0
        self._flushes_done = 0
        self._progress = threading.Condition()
        self._read_end, self.wake_descriptor = os.pipe()
        os.set_blocking(self._read_end, False)
        os.set_blocking(self.wake_descriptor, False)
        self._poll = select.poll()  # select() fails for descriptors from 1024 on
        self._poll.register(self._read_end, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="stagescope-writer", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._close_pipe()
            raise

    def wake(self) -> None:
        """Wake the thread. A full pipe means that it is already awake."""
        try:
            os.write(self.wake_descriptor, _WAKE)
        except OSError as error:
            if not is_packing_error(error):
                raise

    def flush(self, timeout_s: float) -> bool:
        """Write everything emitted so far; return whether that finished within `timeout_s`."""
        with self._progress:
            self._flushes_wanted += 1
            wanted = self._flushes_wanted
            self.wake()
            return self._progress.wait_for(lambda: self._flushes_done >= wanted, timeout_s)

    def stop(self, reason: str) -> None:
        """Write the rest and the END frame and end the thread, waiting at most `STOP_TIMEOUT_S`.

        The pipe stays open while anything can reach it: a thread that is interrupted inside `wake` would otherwise
        write into whichever file has been given the same descriptor since.
        """
        self._stop_reason = reason
        self.wake()
        self._thread.join(STOP_TIMEOUT_S)

    def store_now(self) -> None:
        """Write what is there. Only for the writer thread itself, before it ends the process."""
        self._serve()

    def abandon(self) -> None:
        """In a forked child, close what belongs to the parent. The thread does not exist in the child."""
        self._close_pipe()
        self._recording.close()

    def __del__(self) -> None:
        if hasattr(self, "wake_descriptor"):
            self._close_pipe()

    def _close_pipe(self, close: Callable[[int], None] = os.close) -> None:
        ends = (self._read_end, self.wake_descriptor)
        self._read_end = self.wake_descriptor = CLOSED
        for end in ends:
            if end != CLOSED:
                close(end)

    def _run(self) -> None:
        while self._stop_reason is None:
            signal_numbers = self._sleep()
            self._serve()
            for number in signal_numbers:
                self._on_signal(number)
        self._serve()
        self._recording.finish(self._stop_reason)

    def _sleep(self) -> list[int]:
        """Wait for a byte or for the flush interval; return the numbers of the signals that arrived."""
        self._poll.poll(FLUSH_INTERVAL_S * 1000)
        try:
            return [number for number in os.read(self._read_end, 4096) if number]
        except BlockingIOError:
            return []
        except OSError:  # the training has closed all descriptors it does not know, including this one
            time.sleep(FLUSH_INTERVAL_S)
            return []

    def _serve(self) -> None:
        wanted = self._flushes_wanted
        try:
            self._store()
        except Exception as error:  # noqa: BLE001  # for example MemoryError; the chunk stays queued and is written next time
            self._recording.warn(f"the recording may have lost spans: {error!r}")
        with self._progress:
            self._flushes_done = wanted
            self._progress.notify_all()

    def _store(self) -> None:
        # Taken first and written last: the record of a step is one of them, and no record of the step may follow it.
        ended = [] if self._waiting is None else self._waiting.take()
        while self._pool.full:
            chunk = self._pool.full[0]
            self._write_fresh(chunk)
            self._pool.full.popleft()
            self._pool.give_back(chunk)
        for buffer in list(self._buffers):
            self._write_partial(buffer)
        self._write_waiting(ended)
        self._recording.write_counters()
        dropped = self._dropped_by_ended_threads + sum(buffer.dropped for buffer in self._buffers)
        dropped += self._dropped_while_packing + (0 if self._waiting is None else self._waiting.dropped)
        self._recording.write_drops(dropped + self._recording.spans_lost)
        self._recording.write_raw_readings()
        self._recording.write_anchor_if_due()
        self._on_stored()

    def _write_waiting(self, ended: list[Ended]) -> None:
        """Write actions, of which those in `ended` have to be packed, in portions of the size of a chunk."""
        if self._waiting is None:
            return
        if self._waiting.packed:
            self._recording.write_spans(self._waiting.packed)
            self._waiting.packed = b""
        for begin in range(0, len(ended), RECORDS_OF_CHUNK):
            records, dropped = self._waiting.pack(ended[begin : begin + RECORDS_OF_CHUNK])
            self._recording.write_spans(records)
            self._dropped_while_packing += dropped
        self._waiting.done()

    def _write_fresh(self, chunk: Chunk) -> None:
        """Write the part of a chunk that has not been written yet."""
        used = chunk.used
        self._recording.write_spans(bytes(chunk.data[chunk.flushed : used]))
        chunk.flushed = used

    def _write_partial(self, buffer: ThreadBuffer) -> None:
        """Write what a thread has put into its chunk so far, while the thread continues to fill it."""
        ended = buffer.ended  # read before the chunk, so that the thread's last span is not missed
        chunk = buffer.chunk
        if chunk is not None:
            self._write_fresh(chunk)
        if ended:
            self._buffers.remove(buffer)
            self._dropped_by_ended_threads += buffer.dropped
            if chunk is not None:
                self._pool.give_back(chunk)
