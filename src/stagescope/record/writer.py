"""The writer thread: the only place where the recorder touches the disk.

It sleeps on a pipe. A byte wakes it: a full chunk, the end of a step, a signal (the C-level handler writes
the signal's number there even while the main thread is stuck inside a library), or the end. Waking it costs
the training one write of one byte and never blocks.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.buffers import ChunkPool, ThreadBuffer
    from stagescope.record.recording import Recording

FLUSH_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 5.0
_WAKE = b"\0"


class Writer:
    """Empties thread buffers into one recording until it is stopped."""

    def __init__(self, recording: Recording, pool: ChunkPool, on_signal: Callable[[int], None]) -> None:
        self._recording = recording
        self._pool = pool
        self._on_signal = on_signal
        self._buffers: list[ThreadBuffer] = []
        self._dropped_by_ended_threads = 0
        self._stop_reason: str | None = None
        self._flushes_wanted = 0
        self._flushes_done = 0
        self._progress = threading.Condition()
        self._read_end, self.wake_descriptor = os.pipe()
        os.set_blocking(self._read_end, False)  # noqa: FBT003  # the standard library takes it by position
        os.set_blocking(self.wake_descriptor, False)  # noqa: FBT003  # same
        self._thread = threading.Thread(target=self._run, name="stagescope-writer", daemon=True)
        self._thread.start()

    def add_buffer(self, buffer: ThreadBuffer) -> None:
        """Take a thread's buffer into care."""
        self._buffers.append(buffer)

    def wake(self) -> None:
        """Wake the thread; a full pipe means that it is awake already."""
        try:
            os.write(self.wake_descriptor, _WAKE)
        except OSError:
            return

    def flush(self, timeout_s: float) -> bool:
        """Have everything emitted so far written; return whether that was done within `timeout_s`."""
        with self._progress:
            self._flushes_wanted += 1
            wanted = self._flushes_wanted
            self.wake()
            return self._progress.wait_for(lambda: self._flushes_done >= wanted, timeout_s)

    def stop(self, reason: str) -> None:
        """Write what is left and the END frame and end the thread; gives up after a few seconds."""
        self._stop_reason = reason
        self.wake()
        self._thread.join(STOP_TIMEOUT_S)
        if not self._thread.is_alive():
            self._close_pipe()

    def abandon(self) -> None:
        """Let go, in a forked child, of what belongs to the parent; the thread exists only there."""
        self._close_pipe()
        self._recording.close()

    def _close_pipe(self) -> None:
        os.close(self._read_end)
        os.close(self.wake_descriptor)

    def _run(self) -> None:
        while self._stop_reason is None:
            signal_numbers = self._sleep()
            self._serve()
            for number in signal_numbers:
                self._on_signal(number)
        self._serve()
        self._recording.finish(self._stop_reason)

    def _sleep(self) -> list[int]:
        """Wait for a byte or for the flush interval; return the numbers of the signals that came."""
        select.select([self._read_end], [], [], FLUSH_INTERVAL_S)
        try:
            return [number for number in os.read(self._read_end, 4096) if number]
        except BlockingIOError:
            return []

    def _serve(self) -> None:
        wanted = self._flushes_wanted
        while self._pool.full:
            chunk = self._pool.full.popleft()
            self._recording.write_spans(bytes(chunk.data[chunk.flushed : chunk.used]))
            self._pool.give_back(chunk)
        for buffer in list(self._buffers):
            self._write_partial(buffer)
        dropped = self._dropped_by_ended_threads + sum(buffer.dropped for buffer in self._buffers)
        self._recording.write_drops(dropped + self._recording.spans_lost)
        self._recording.write_anchor_if_due()
        with self._progress:
            self._flushes_done = wanted
            self._progress.notify_all()

    def _write_partial(self, buffer: ThreadBuffer) -> None:
        """Write what a thread has put into its chunk so far; the thread goes on filling it."""
        ended = not buffer.thread.is_alive()
        chunk = buffer.chunk
        if chunk is not None and chunk.used > chunk.flushed:
            used = chunk.used
            self._recording.write_spans(bytes(chunk.data[chunk.flushed : used]))
            chunk.flushed = used
        if ended:
            self._buffers.remove(buffer)
            self._dropped_by_ended_threads += buffer.dropped
            if chunk is not None:
                self._pool.give_back(chunk)
