"""The recorder of one process: what is on, which step it is, and the way of a span into its buffer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from stagescope.record.buffers import (
    DEFAULT_CAPACITY_BYTES,
    LAST_RECORD,
    RECORD_BYTES,
    THREAD_INDEXES,
    ChunkPool,
    Seen,
    ThreadBuffer,
    ThreadEnd,
)
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.lifecycle import Lifecycle
from stagescope.record.process_facts import machine_directory, process_facts
from stagescope.record.recording import MAX_NAME_CHARACTERS, Recording
from stagescope.record.records import LANE_OF_CODE, is_our_own, pack_span, plain_middle, plain_tails
from stagescope.record.segments import DEFAULT_MAX_BYTES
from stagescope.record.timing import Timer
from stagescope.record.writer import Writer
from stagescope.vocabulary.kinds import STEP_CODE
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.mirrors import Mirrors

FLUSH_TIMEOUT_S = 5.0
RESCUE_TIMEOUT_S = 1.5


class Recorder:
    """Records spans of this process. Its methods never raise and never wait for the disk, but for flush and stop."""

    def __init__(
        self,
        directory: str,
        *,
        steps: StepRange | None = None,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Record into `directory`: keep `capacity_bytes` in memory, and `max_bytes` on disk unless that is 0."""
        self.directory = directory
        self._max_bytes = max_bytes
        self.steps = steps or StepRange()
        self.capacity_bytes = capacity_bytes
        self._step = NONE
        self.plain_middle = plain_middle(NONE)
        self.pair = NONE
        self.step_is_given = False
        self.enabled = 0 in self.steps or NONE in self.steps
        self.on_change: Callable[[], object] = bool
        self.last_pair = 0
        self.mirror: Mirrors | None = None
        self._stopped = False
        self._facts: dict[str, object] = {}
        self._begin_empty()
        self.timer = Timer(self)
        self._lifecycle = Lifecycle(self)

    def _begin_empty(self) -> None:
        """Set up everything that belongs to this process alone; a forked child does it again."""
        self._pool = ChunkPool(self.capacity_bytes)
        self.local = threading.local()
        self._lock = threading.RLock()  # a signal handler may record a span while its thread holds it
        self._recording = Recording(self.directory, self._max_bytes)
        self._name_ids: dict[str, int] = {}
        self._writer: Writer | None = None
        self._writer_is_starting = False
        self._buffers: list[ThreadBuffer] = []
        self._threads = 0
        self.seen = Seen()
        self._had_spans = False
        self._began_ns = now_ns()

    @property
    def step(self) -> int:
        """Number of the step that spans belong to now, NONE outside of all."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self.plain_middle = plain_middle(step)
        self.on_change()

    def switch(self, *, on: bool) -> None:
        """Record from now on, or not."""
        self.enabled = on
        self.on_change()

    @property
    def has_spans(self) -> bool:
        """Whether there was a span since `forget_spans` was called."""
        return self.seen.spans

    @property
    def path(self) -> str | None:
        """Path of the recording file, None before the first span."""
        return self._recording.path

    def emit(  # noqa: PLR0917  # a span is what it is: these are the fields of a record
        self,
        kind: int,
        start_ns: int,
        end_ns: int,
        stage: int = NONE,
        microbatch: int = NONE,
        chunk: int = NONE,
        peer: int = NONE,
        size_bytes: int = NONE,
        wait_start_ns: int = NONE,
        wait_end_ns: int = NONE,
        name: int = 0,
        pair: int = NONE,
        step: int | None = None,
    ) -> None:
        """Record one span of the current step, or of the given one, on the lane that its kind belongs to."""
        try:
            buffer = self.local.buffer
        except AttributeError:
            buffer = self._new_buffer()
        chunk_of_records = buffer.chunk or buffer.find_room()
        if chunk_of_records is None:
            return
        used = chunk_of_records.used
        try:
            pack_span(chunk_of_records.data, used, start_ns, end_ns, wait_start_ns, wait_end_ns, size_bytes,
                       self._step if step is None else step, stage, microbatch, peer, pair, name, chunk,
                       buffer.index, kind, LANE_OF_CODE[kind])  # fmt: skip
        except Exception as error:  # a value that fits no field must not stop the training
            if used <= LAST_RECORD:
                buffer.dropped += 1
                if is_our_own(error):
                    return
                raise
            buffer.turn_over()  # nobody has done that yet: spans that are marked by hand do not look for it
        else:
            if chunk_of_records.used == used:
                self.seen.spans = True
                chunk_of_records.used = used + RECORD_BYTES
                if used == LAST_RECORD:
                    buffer.turn_over()
                return
        self.emit(  # in another chunk, or because a signal handler has recorded a span in the same place
            kind,
            start_ns,
            end_ns,
            stage,
            microbatch,
            chunk,
            peer,
            size_bytes,
            wait_start_ns,
            wait_end_ns,
            name,
            pair,
            step,
        )

    def expect_spans(self) -> None:
        """Watch the ends of this process from now on, as it has spans that are only known later."""
        if not hasattr(self.local, "buffer"):
            self._new_buffer()

    def drop(self, count: int) -> None:
        """Count spans that were timed and cannot be recorded."""
        if not count:
            return
        try:
            buffer = self.local.buffer
        except AttributeError:
            buffer = self._new_buffer()
        buffer.dropped += count

    def add_device_anchor(self, record: bytes) -> None:
        """Have one packed record of the map from the device's clock to the host's written with the next spans."""
        self._recording.add_device_anchor(record)

    def warn(self, message: str) -> None:
        """Say once on stderr what recording suffers from."""
        self._recording.warn(message)

    def name_id(self, text: str) -> int:
        """Return the string table's number for `text`, of which the beginning counts."""
        return self._name_ids.get(text) or self._new_name_id(text[:MAX_NAME_CHARACTERS])

    def begin_step(self, step: int | None = None) -> int:
        """Enter the next training step, or the given one; return the moment.

        Once a step was given, it lasts until another one is given: the training counts, not the recorder.
        """
        if step is not None:
            self.step, self.step_is_given = step, True
        elif not self.step_is_given:
            self.step += 1
        if step is not None or not self.step_is_given:
            self.switch(on=self.step in self.steps)
        self.timer.begin_step()
        return now_ns()

    def end_step(self, start_ns: int) -> None:
        """Record the step that began at `start_ns` and have the writer store it."""
        if self.enabled:
            self.emit(STEP_CODE, start_ns, now_ns())
            self.timer.harvest()
            self.flush_soon()

    def forget_spans(self) -> bool:
        """Clear `has_spans`, which every span sets; return whether there has been one at any time."""
        self._had_spans |= self.seen.spans
        self.seen.spans = False
        return self._had_spans

    def new_pair(self) -> int:
        """Return a number for two actions that overlap."""
        self.last_pair += 1
        return self.last_pair

    def describe(self, **facts: object) -> None:
        """Add facts to the recording's header; a forked child has them too."""
        with self._lock:
            self._facts.update(facts)
            if self._writer:
                self._recording.describe(facts)

    def flush_soon(self) -> None:
        """Ask the writer to store what is there; returns at once."""
        writer = self._writer
        if writer:
            writer.wake()

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Store everything emitted so far; return whether that was done within `timeout_s`."""
        self.timer.harvest()
        writer = self._writer
        return writer.flush(timeout_s) if writer else True

    def stop(self, reason: str) -> None:
        """Store everything, write the END frame and end the writer; does nothing the second time."""
        self.timer.finish()
        self.switch(on=False)
        self._lifecycle.detach()
        with self._lock:
            self._stopped = True
            writer, self._writer = self._writer, None
        if writer:
            writer.stop(reason)
        self._pool.close()

    def rescue(self) -> None:
        """Store what a device has done, from the writer thread, while the main thread is stuck.

        A driver that hangs as well must not keep the process alive, so it is asked in a thread that may stay behind.
        """
        writer = self._writer
        if writer is None or self.timer.device is None:
            return
        asking = threading.Thread(target=self.timer.finish, name="stagescope-rescue", daemon=True)
        try:
            asking.start()
        except RuntimeError:
            return
        asking.join(RESCUE_TIMEOUT_S)
        writer.store_now()

    def restart_in_child(self) -> None:
        """Drop what a fork brought along: the child writes a file of its own, once it has a span."""
        if self._writer:
            self._writer.abandon()
        self._begin_empty()
        self.on_change()
        self.timer.restart_in_child()

    def _new_buffer(self) -> ThreadBuffer:
        """Return the calling thread's new buffer; the first one starts the writer.

        Where nothing is recorded any more, or nothing can be, the buffer has no room and drops every span.
        """
        with self._lock:
            if self._writer is None and not self._stopped and not self._writer_is_starting:
                self._start_writer()
            index = self._threads % THREAD_INDEXES
            buffer = ThreadBuffer(self._pool, index, self.flush_soon, plain_tails(index), self.seen)
            self._threads += 1
            self._buffers.append(buffer)
            if self._writer:
                self._lifecycle.attach(self._writer)
        self.local.buffer = buffer
        self.local.end = ThreadEnd(buffer)
        if not self._stopped:
            self.timer.begin_step()  # a script that only marks spans by hand never begins a step or a action
        return buffer

    def _start_writer(self) -> None:
        self._writer_is_starting = True  # to a signal handler that records a span while we are here
        try:
            self._recording.write_into(machine_directory(self.directory))
            self._recording.describe({**process_facts(self._began_ns), **self._facts})
            on_signal = self._lifecycle.on_signal_byte
            self._writer = Writer(self._recording, self._pool, self._buffers, on_signal)
        except Exception as error:  # noqa: BLE001  # such as: no file or thread is left, or Python is ending
            self._stopped = True
            self._pool.close()
            self._recording.warn(f"cannot record: {error}")
        self._writer_is_starting = False

    def _new_name_id(self, text: str) -> int:
        number = self._name_ids.get(text) or self._recording.add_name(text)
        if number != self._recording.shared_name:
            self._name_ids[text] = number
        return number
