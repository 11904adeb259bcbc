"""The recorder of one process: its steps, its writer, and what it states about the process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from stagescope.record.buffers import (
    DEFAULT_CAPACITY_BYTES,
    THREAD_INDEXES,
    ChunkPool,
    ThreadBuffer,
    ThreadEnd,
)
from stagescope.record.clock import now_ns, raw_ns
from stagescope.record.control import COLLECTIVES, KERNELS, MEMORY
from stagescope.record.counters import Counters
from stagescope.record.emitter import Emitter
from stagescope.record.format import NONE
from stagescope.record.lifecycle import Lifecycle
from stagescope.record.process_facts import machine_directory, process_facts
from stagescope.record.recording import MAX_NAME_CHARACTERS, Recording
from stagescope.record.records import plain_tails
from stagescope.record.retention import DEFAULT_MAX_BYTES, Retention
from stagescope.record.timing import Timer
from stagescope.record.waiting import Waiting
from stagescope.record.writer import Writer
from stagescope.vocabulary.kinds import STEP_CODE
from stagescope.vocabulary.steps import StepRange

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sized
    from types import CodeType

    from stagescope.record.control import Request
    from stagescope.record.coverage import Coverage
    from stagescope.record.devices.kernel_trace import KernelTrace
    from stagescope.record.hooks import Guard

# A stop must not hold up the end of a training for long when the file system hangs.
FLUSH_TIMEOUT_S = 5.0
# Together with the flush, this has to fit into the time between SIGTERM and SIGKILL.
RESCUE_TIMEOUT_S = 1.5
FREE_ENDS = ("exit", "exception", "stop")
"""Reasons of an end at which no thread of the training can hold the lock of an allocator."""


class Recorder(Emitter):
    """Records spans of this process. No method raises, and only `flush` and `stop` wait for the disk."""

    def __init__(
        self,
        directory: str,
        *,
        steps: StepRange | None = None,
        capacity_bytes: int = DEFAULT_CAPACITY_BYTES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        retention: Retention | None = None,
    ) -> None:
        """Record into `directory`, with at most `capacity_bytes` in memory and `max_bytes` on disk (0: unlimited).

        `retention` bounds what is on disk in time and steps.

        `guards` has one entry per framework with hooks, `name_ids` the indexes of known names. `step_label` names the
        pipeline that runs the current step, `training_thread` is the id of the thread that has begun it. The functions
        in `unfinished` record what is still under way, before each step and at the end, where those in `at_end` follow;
        each is called if the collection before it is not empty. Those in `in_child` discard, in a forked child, what is
        still under way in its parent. The functions in `issued_collectives` return how many collectives of each group
        were issued, those in `waits_in_native_code` the wait in progress, given the codes of the functions that the
        training thread is in. `requested` is a request of `stagescope control` that waits for its step, `applied_step`
        the first step of the last one.
        With `details_memory` the memory of a device is recorded at the end of each action, and not once a second; with
        `details_kernels`, `kernels` traces the recorded steps.
        """
        self.steps = steps or StepRange()
        super().__init__(enabled=0 in self.steps or NONE in self.steps)
        self.directory = directory
        self._bounds = max_bytes, retention
        self.capacity_bytes = capacity_bytes
        self.step_is_given = False
        self.step_label = ""
        self.training_thread = 0
        self.guards: dict[str, Guard] = {}
        self.details_memory = self.details_kernels = False
        self.kernels: KernelTrace | None = None
        self.unfinished: list[tuple[Sized, Callable[[], object]]] = []
        self.at_end: list[Callable[[], object]] = []
        self.in_child: list[Callable[[], object]] = []
        self.issued_collectives: list[Callable[[], dict[str, int]]] = []
        self.waits_in_native_code: list[Callable[[Collection[CodeType]], dict[str, object] | None]] = []
        self.requested: Request | None = None
        self.applied_step = NONE
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
        self.begin_empty()
        self._lock = (
            threading.RLock()
        )  # reentrant: a signal handler may record a span while its own thread holds it
        self._recording = Recording(self.directory, *self._bounds)
        self.counters = self._recording.counters = Counters(self)
        self.name_ids: dict[str, int] = {}
        self._writer: Writer | None = None
        self._writer_is_starting = False
        self._buffers: list[ThreadBuffer] = []
        self._threads = 0
        self._had_spans = False
        self._began_ns = now_ns()

    @property
    def coverage(self) -> Coverage:
        """What is recorded of each framework."""
        if self._coverage is None:
            from stagescope.record.coverage import Coverage  # not needed before a framework

            self._coverage = Coverage(self)
        return self._coverage

    @property
    def path(self) -> str | None:
        """Path of the recording file, None before the first span."""
        return self._recording.path

    @property
    def has_recorded(self) -> bool:
        """Whether any span has been recorded since the process started, written or not."""
        return self._had_spans or self.seen.spans

    def keep_without_spans(self) -> None:
        """Create the recording even if no span is ever recorded, for what its header states."""
        self._recording.keeps_without_spans = True
        self.expect_spans()

    def add_device_anchor(self, record: bytes) -> None:
        """Queue one packed DEVICE_CLOCK record, to be written before the next spans."""
        self._recording.add_device_anchor(record)

    def warn(self, message: str) -> None:
        """Print a warning on stderr, once per message."""
        self._recording.warn(message)

    def name_id(self, text: str) -> int:
        """Return the string table index of `text`, which is truncated to `MAX_NAME_CHARACTERS`."""
        return self.name_ids.get(text) or self._new_name_id(text[:MAX_NAME_CHARACTERS])

    def begin_step(self, step: int | None = None) -> int:
        """Enter the next training step, or step `step`, and return the current time in nanoseconds.

        Once the training has passed a step number, only another explicit number changes the step.
        """
        self.training_thread = threading.get_ident()
        if self._writer is None and not self._stopped:
            self.expect_spans()  # looks for requests, which this step may already follow
        if self._writer is not None:
            self._let_wait()
        if step is not None or not self.step_is_given:
            self.step_is_given = step is not None
            number = self._step + 1 if step is None else step
            if self.requested is not None and number >= self.requested.from_step:
                self.apply(self.requested, number)
            self.enter_step(number, *self.steps)
            if self.kernels is not None:
                self.kernels.follow(number, is_wanted=self.enabled and self.details_kernels)
        timer = self.timer
        if timer.device is not None or timer.reported is None:
            timer.begin_step()
        for pending, record in self.unfinished:
            if pending:
                self._record_pending(record)
        if self.seen.spans and (timer.device is None or self.device_records is not None):
            self.settle()
        return now_ns()

    def _let_wait(self) -> None:
        """Let the calling thread leave its actions to the writer."""
        buffer = getattr(self.local, "buffer", None) or self._new_buffer()
        if self.thread_index != buffer.index or self.waiting_thread != self.training_thread:
            self.waiting_thread = 0  # in this order: a signal handler may record an action on any line
            self.thread_index = buffer.index
            self.unsettle()
            self.waiting_thread = self.training_thread

    def apply(self, request: Request, step: int = NONE) -> None:
        """Record what a request of `stagescope control` asks for, from `step` on, which is about to begin."""
        self.applied_step = step
        if request.steps is not None:
            self.steps = request.steps
            if self._step == NONE:
                self.switch(on=0 in request.steps or NONE in request.steps)
        if request.details is not None:
            self.is_detailed, self.details_memory = COLLECTIVES in request.details, MEMORY in request.details
            self.details_kernels = KERNELS in request.details
            if self.details_kernels:
                self._prepare_kernels()
            self.timer.follow_details()
        self.requested = None

    def _prepare_kernels(self) -> None:
        from stagescope.record.devices.kernel_trace import KernelTrace  # rarely used, and it imports `gc`

        if self.kernels is not None:
            self.at_end.remove(self.kernels.end)
            self.kernels.end()
        self.kernels = KernelTrace(self)
        self.at_end.append(self.kernels.end)

    def end_step(self, start_ns: int) -> None:
        """Record the step that began at `start_ns`. The writer stores it within `writer.FLUSH_INTERVAL_S`.

        Waking it here would make it compete for the interpreter with the next step. It is woken if steps are so short
        that half of what may wait for it is there.
        """
        if self.enabled:
            label = self.step_label
            name = (self.name_ids.get(label) or self.name_id(label)) if label else 0
            end_ns = now_ns()
            self._recording.step_ends.append((end_ns, raw_ns(), now_ns()))
            self.emit_action(STEP_CODE, start_ns, end_ns, NONE, NONE, NONE, name)
            if len(self.waiting) > self.most_waiting // 2:
                self.flush_soon()
            if self.timer.device is not None:
                self.timer.harvest()

    def forget_spans(self) -> bool:
        """Clear `has_spans`; return whether any span has been recorded since the process started."""
        # A guard such as `profile_range` needs to know about spans before the previous one, too.
        self._had_spans = self.has_recorded
        self.seen.spans = False
        self.unsettle()
        self.has_actions = self.has_actions and self.is_in_run  # the next action states both again
        return self._had_spans

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

    def stop(self, reason: str, *, exception: str | None = None, exit_status: int | None = None) -> None:
        """Write everything and the END frame, and stop the writer. Calling it again has no effect.

        `exception` is the type of the exception that ended the process, `exit_status` that of the process if known.
        """
        self._call_all(*(record for pending, record in self.unfinished if pending), *self.at_end)
        if reason in FREE_ENDS:
            self.timer.sample_memory()
        self.timer.finish()
        self.switch(on=False)
        self._lifecycle.detach()
        with self._lock:
            self._stopped = True
            self.waiting_thread = 0
            writer, self._writer = self._writer, None
        if writer:
            self._recording.exception, self._recording.exit_status = exception, exit_status
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
        self._call_all(*self.in_child)

    def _record_pending(self, record: Callable[[], object]) -> None:
        is_seen = self.seen.spans
        self._call_all(record)
        if not is_seen:  # collections of garbage, for example, are no spans of the step that begins
            self.forget_spans()

    def _call_all(self, *functions: Callable[[], object]) -> None:
        for record in functions:
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
            self.counters.prepare()
            on_signal = self._lifecycle.on_signal_byte
            from stagescope.record.state_reports import StateReports  # not needed before the first span

            reports = StateReports(self, self._recording)
            reports.notice()
            self._pool.waiting = Waiting(self.waiting)
            self._writer = Writer(self._recording, self._pool, self._buffers, on_signal, reports.look)
        except Exception as error:  # noqa: BLE001  # for example no file or thread available, or interpreter shutdown
            self._stopped = True
            self._pool.close()
            self._recording.warn(f"cannot record: {error}")
        self._writer_is_starting = False

    def name_text(self, number: int) -> str | None:
        """Return the text of a string table entry, None if it is unknown. Takes time: for reports of the state."""
        return next((text for text, known in list(self.name_ids.items()) if known == number), None)

    def _new_name_id(self, text: str) -> int:
        number = self.name_ids.get(text) or self._recording.add_name(text)
        if number != self._recording.shared_name:
            self.name_ids[text] = number
        return number
