"""The recorder of one process: whether it is recording, the current step, and how a span reaches its buffer."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

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
from stagescope.record.clock import now_ns, raw_ns
from stagescope.record.counters import Counters
from stagescope.record.format import NONE
from stagescope.record.lifecycle import Lifecycle
from stagescope.record.process_facts import machine_directory, process_facts
from stagescope.record.recording import MAX_NAME_CHARACTERS, Recording
from stagescope.record.records import LANE_OF_CODE, is_packing_error, pack_span, plain_middle, plain_tails
from stagescope.record.segments import DEFAULT_MAX_BYTES
from stagescope.record.timing import Timer
from stagescope.record.writer import Writer
from stagescope.vocabulary.kinds import STEP_CODE
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.coverage import Coverage
    from stagescope.record.hooks import Guard
    from stagescope.record.mirrors import Mirrors

# A stop must not hold up the end of a training for long when the file system hangs.
FLUSH_TIMEOUT_S = 5.0
# Together with the flush, this has to fit into the time between SIGTERM and SIGKILL.
RESCUE_TIMEOUT_S = 1.5
FREE_ENDS = ("exit", "stop")
"""Reasons of an end at which no thread of the training can hold the lock of an allocator."""


class Recorder:
    """Records spans of this process. No method raises, and only `flush` and `stop` wait for the disk."""

    def __init__(
        self,
        directory: str,
        *,
        steps: StepRange | None = None,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        """Record into `directory`, with at most `capacity_bytes` in memory and `max_bytes` on disk (0: unlimited).

        `guards` has one entry per framework with hooks; `actions` counts the actions of frameworks, so that a step
        without any can be reported. `step_label` names the pipeline that runs the current step, `stage` and `chunk` the
        action in progress. `computed` is the moment of the timer at which that action had computed everything and began
        to wait for the reduction of its gradients, None if it did not. The functions in `unfinished` record what is
        still under way, before each step and at the end, where those in `at_end` follow. Within an action
        `counts_collectives` is set unless the recording `is_detailed`: collectives are then not recorded one by one.
        With `details_memory` the memory of a device is recorded at the end of each action, and not once a second.
        """
        self.directory = directory
        self._max_bytes = max_bytes
        self.steps = steps or StepRange()
        self.capacity_bytes = capacity_bytes
        self._step = NONE
        self.plain_middle = plain_middle(NONE)
        self.pair = NONE
        self.step_is_given = False
        self.step_label = ""
        self.enabled = 0 in self.steps or NONE in self.steps
        self.on_change: Callable[[], object] = bool
        self.last_pair = 0
        self.mirror: Mirrors | None = None
        self.guards: dict[str, Guard] = {}
        self.actions = 0
        self.stage, self.chunk = NONE, NONE
        self.is_detailed = self.counts_collectives = self.details_memory = False
        self.computed: Any = None
        self.unfinished: list[Callable[[], object]] = []
        self.at_end: list[Callable[[], object]] = []
        self._coverage: Coverage | None = None
        self._stopped = False
        self._facts: dict[str, object] = {}
        self._identity = ""
        self._forked_from: list[str] = []
        self._begin_empty()
        self.timer = Timer(self)
        self._lifecycle = Lifecycle(self)

    def _begin_empty(self) -> None:
        """Create the state that belongs to this process alone. A forked child calls this again."""
        if self._identity:
            self._forked_from = [*self._forked_from, self._identity]
            self._facts["forked_from"] = self._forked_from
        self._identity = os.urandom(8).hex()
        self._pool = ChunkPool(self.capacity_bytes)
        self.local = threading.local()
        self._lock = (
            threading.RLock()
        )  # reentrant: a signal handler may record a span while its own thread holds it
        self._recording = Recording(self.directory, self._max_bytes)
        self.counters = self._recording.counters = Counters(self)
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
        """Number of the current training step, `NONE` outside of any step."""
        return self._step

    @step.setter
    def step(self, step: int) -> None:
        self._step = step
        self.plain_middle = plain_middle(step)
        self.on_change()

    def switch(self, *, on: bool) -> None:
        """Turn recording on or off."""
        self.enabled = on
        self.on_change()

    @property
    def coverage(self) -> Coverage:
        """What is recorded of each framework."""
        if self._coverage is None:
            from stagescope.record.coverage import Coverage  # not needed before a framework

            self._coverage = Coverage(self)
        return self._coverage

    @property
    def has_spans(self) -> bool:
        """Whether a span was recorded since the last call of `forget_spans`."""
        return self.seen.spans

    @property
    def is_training(self) -> bool:
        """Whether this process is recording and has begun a step or recorded a span.

        Other processes load data and reduce tensors, too: they must not leave a recording.
        """
        return self.enabled and (self._step != NONE or self.seen.spans)

    @property
    def path(self) -> str | None:
        """Path of the recording file, None before the first span."""
        return self._recording.path

    def emit(  # noqa: PLR0917  # the fields of one record
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
        """Record one span of `step` (default: the current step) on the lane that its kind belongs to."""
        try:
            buffer = self.local.buffer
        except AttributeError:
            buffer = self._new_buffer()
        chunk_of_records = buffer.chunk or buffer.find_space()
        if chunk_of_records is None:
            return
        used = chunk_of_records.used
        try:
            pack_span(chunk_of_records.data, used, start_ns, end_ns, wait_start_ns, wait_end_ns, size_bytes,
                       self._step if step is None else step, stage, microbatch, peer, pair, name, chunk,
                       buffer.index, kind, LANE_OF_CODE[kind])  # fmt: skip
        except Exception as error:  # a value that does not fit its field must not stop the training
            if used <= LAST_RECORD:
                buffer.dropped += 1
                if is_packing_error(error):
                    return
                raise
            buffer.turn_over()  # still full, because `Span.__exit__` does not turn chunks over
        else:
            if chunk_of_records.used == used:
                self.seen.spans = True
                chunk_of_records.used = used + RECORD_BYTES
                if used == LAST_RECORD:
                    buffer.turn_over()
                return
        self.emit(  # retry in the next chunk, or after a signal handler recorded a span in the same slot
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
        """Start the writer now, for spans whose times become known only later."""
        if not hasattr(self.local, "buffer"):
            self._new_buffer()

    def keep_without_spans(self) -> None:
        """Create the recording even if no span is ever recorded, for what its header states."""
        self._recording.keeps_without_spans = True
        self.expect_spans()

    def drop(self, count: int) -> None:
        """Count `count` spans that were timed but cannot be recorded."""
        if not count:
            return
        try:
            buffer = self.local.buffer
        except AttributeError:
            buffer = self._new_buffer()
        buffer.dropped += count

    def add_device_anchor(self, record: bytes) -> None:
        """Queue one packed DEVICE_CLOCK record, to be written before the next spans."""
        self._recording.add_device_anchor(record)

    def warn(self, message: str) -> None:
        """Print a warning on stderr, once per message."""
        self._recording.warn(message)

    def name_id(self, text: str) -> int:
        """Return the string table index of `text`, which is truncated to `MAX_NAME_CHARACTERS`."""
        return self._name_ids.get(text) or self._new_name_id(text[:MAX_NAME_CHARACTERS])

    def begin_step(self, step: int | None = None) -> int:
        """Enter the next training step, or step `step`, and return the current time in nanoseconds.

        Once the training has passed a step number, only another explicit number changes the step.
        """
        if step is not None:
            self.step, self.step_is_given = step, True
        elif not self.step_is_given:
            self.step += 1
        if step is not None or not self.step_is_given:
            self.switch(on=self.step in self.steps)
        self.timer.begin_step()
        self._record_unfinished()
        return now_ns()

    def end_step(self, start_ns: int) -> None:
        """Record the step that began at `start_ns` and wake the writer."""
        if self.enabled:
            name = self.name_id(self.step_label) if self.step_label else 0
            end_ns = now_ns()
            self._recording.step_ends.append((end_ns, raw_ns(), now_ns()))
            self.emit(STEP_CODE, start_ns, end_ns, name=name)
            self.timer.harvest()
            self.flush_soon()

    def forget_spans(self) -> bool:
        """Clear `has_spans`; return whether any span has been recorded since the process started."""
        # A guard such as `profile_range` needs to know about spans before the previous one, too.
        self._had_spans |= self.seen.spans
        self.seen.spans = False
        return self._had_spans

    def new_pair(self) -> int:
        """Return a new number that marks two actions as overlapping."""
        self.last_pair += 1
        return self.last_pair

    def describe(self, **facts: object) -> None:
        """Add facts to the header of the recording. A forked child inherits them."""
        with self._lock:
            self._facts.update(facts)
            if self._writer:
                self._recording.describe(facts)

    def flush_soon(self) -> None:
        """Wake the writer without waiting for it."""
        writer = self._writer
        if writer:
            writer.wake()

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Write everything emitted so far; return whether that finished within `timeout_s`."""
        self.timer.harvest()
        writer = self._writer
        return writer.flush(timeout_s) if writer else True

    def stop(self, reason: str) -> None:
        """Write everything and the END frame, and stop the writer. Calling it again has no effect."""
        self._record_unfinished(*self.at_end)
        if reason in FREE_ENDS:
            self.timer.sample_memory()
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
        """Write what the device has finished; called by the writer thread while the main thread is stuck.

        The device is queried in a daemon thread, because a driver call may hang too and must not keep the process
        alive.
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
        """Discard the state inherited through a fork. The child creates its own file with its first span."""
        if self._writer:
            self._writer.abandon()
        self._begin_empty()
        self.on_change()
        self.timer.restart_in_child()

    def _record_unfinished(self, *more: Callable[[], object]) -> None:
        for record in (*self.unfinished, *more):
            try:
                record()
            except Exception as error:  # noqa: BLE001, PERF203  # the training must go on
                self.warn(f"not everything could be recorded: {error!r}")

    def _new_buffer(self) -> ThreadBuffer:
        """Return a new buffer for the calling thread. The first buffer starts the writer.

        When recording has stopped or could not start, the buffer has no memory and drops every span.
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
            self.timer.begin_step()  # scripts that only use `span` never call begin_step or run an action
        return buffer

    def _start_writer(self) -> None:
        self._writer_is_starting = True  # checked by a signal handler that records a span meanwhile
        try:
            self._recording.write_into(machine_directory(self.directory))
            self._recording.describe(
                {"recording": self._identity, **process_facts(self._began_ns), **self._facts}
            )
            on_signal = self._lifecycle.on_signal_byte
            self._writer = Writer(self._recording, self._pool, self._buffers, on_signal)
        except Exception as error:  # noqa: BLE001  # for example no file or thread available, or interpreter shutdown
            self._stopped = True
            self._pool.close()
            self._recording.warn(f"cannot record: {error}")
        self._writer_is_starting = False

    def _new_name_id(self, text: str) -> int:
        number = self._name_ids.get(text) or self._recording.add_name(text)
        if number != self._recording.shared_name:
            self._name_ids[text] = number
        return number
