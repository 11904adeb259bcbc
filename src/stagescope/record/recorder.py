"""The recorder of one process: what is on, which step it is, and the way of a span into its buffer."""

from __future__ import annotations

import os
import sys
import threading

from stagescope.record.buffers import (
    DEFAULT_CAPACITY_BYTES,
    LAST_RECORD,
    RECORD_BYTES,
    THREAD_INDEXES,
    ChunkPool,
    ThreadBuffer,
    ThreadEnd,
)
from stagescope.record.clock import CLOCK_NAME, boot_id, now_ns
from stagescope.record.lifecycle import Lifecycle
from stagescope.record.recording import MAX_NAME_CHARACTERS, MAX_NAMES, Recording
from stagescope.record.writer import Writer
from stagescope.vocabulary.kinds import BY_CODE, LANE_CODES, STEP_CODE
from stagescope.vocabulary.recording import FORMAT_VERSION, NONE, SPAN
from stagescope.vocabulary.steps import StepRange

FLUSH_TIMEOUT_S = 5.0

_pack_into = SPAN.pack_into

_LANE_OF_CODE = {code: LANE_CODES[kind.lane] for code, kind in BY_CODE.items()} | {
    STEP_CODE: LANE_CODES["host"]
}
_RANK_VARIABLES = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_WORLD_SIZE_VARIABLES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS")


class Recorder:
    """Records spans of this process. Its methods never raise and never wait for the disk, but for flush and stop."""

    def __init__(
        self, directory: str, *, steps: StepRange | None = None, capacity_bytes: int = DEFAULT_CAPACITY_BYTES
    ) -> None:
        self.directory = directory
        self.steps = steps or StepRange()
        self.capacity_bytes = capacity_bytes
        self.step = NONE
        self.pair = NONE
        self.step_is_given = False
        self.enabled = 0 in self.steps or NONE in self.steps
        self.last_pair = 0
        self._stopped = False
        self._facts: dict[str, object] = {}
        self._begin_empty()
        self._lifecycle = Lifecycle(self)

    def _begin_empty(self) -> None:
        """Set up everything that belongs to this process alone; a forked child does it again."""
        self._pool = ChunkPool(self.capacity_bytes)
        self._local = threading.local()
        self._lock = threading.RLock()  # a signal handler may record a span while its thread holds it
        self._recording = Recording(self.directory)
        self._name_ids: dict[str, int] = {}
        self._writer: Writer | None = None
        self._writer_is_starting = False
        self._buffers: list[ThreadBuffer] = []
        self._threads = 0
        self.spans_seen = 0
        self._began_ns = now_ns()

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
    ) -> None:
        """Record one span of the current step on the lane that its kind belongs to."""
        try:
            buffer = self._local.buffer
        except AttributeError:
            buffer = self._new_buffer()
        chunk_of_records = buffer.chunk or buffer.find_room()
        if chunk_of_records is None:
            return
        used = chunk_of_records.used
        try:
            _pack_into(chunk_of_records.data, used, start_ns, end_ns, wait_start_ns, wait_end_ns, size_bytes,
                       self.step, stage, microbatch, peer, pair, name, chunk, buffer.index, kind,
                       _LANE_OF_CODE[kind])  # fmt: skip
            if chunk_of_records.used == used:
                self.spans_seen += 1
                chunk_of_records.used = used + RECORD_BYTES
                if used == LAST_RECORD:
                    buffer.turn_over()
                return
        except Exception:  # noqa: BLE001  # a value that fits no field must not stop the training
            if used <= LAST_RECORD:
                buffer.dropped += 1
                return
            buffer.turn_over()  # we are a signal handler, and have interrupted who was about to do that
        self.emit(  # a signal handler has recorded a span in the same place meanwhile
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
        )

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
            self.enabled = self.step in self.steps
        return now_ns()

    def end_step(self, start_ns: int) -> None:
        """Record the step that began at `start_ns` and have the writer store it."""
        if self.enabled:
            self.emit(STEP_CODE, start_ns, now_ns())
            self.flush_soon()

    def new_pair(self) -> int:
        """Return a number for two jobs that overlap."""
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
        writer = self._writer
        return writer.flush(timeout_s) if writer else True

    def stop(self, reason: str) -> None:
        """Store everything, write the END frame and end the writer; does nothing the second time."""
        self.enabled = False
        self._lifecycle.detach()
        with self._lock:
            self._stopped = True
            writer, self._writer = self._writer, None
        if writer:
            writer.stop(reason)
        self._pool.close()

    def restart_in_child(self) -> None:
        """Drop what a fork brought along: the child writes a file of its own, once it has a span."""
        if self._writer:
            self._writer.abandon()
        self._begin_empty()

    def _new_buffer(self) -> ThreadBuffer:
        """Return the calling thread's new buffer; the first one starts the writer.

        Where nothing is recorded any more, or nothing can be, the buffer has no room and drops every span.
        """
        with self._lock:
            if self._writer is None and not self._stopped and not self._writer_is_starting:
                self._start_writer()
            buffer = ThreadBuffer(self._pool, self._threads % THREAD_INDEXES, self.flush_soon)
            self._threads += 1
            self._buffers.append(buffer)
            if self._writer:
                self._lifecycle.attach(self._writer)
        self._local.buffer = buffer
        self._local.end = ThreadEnd(buffer)
        return buffer

    def _start_writer(self) -> None:
        self._writer_is_starting = True  # to a signal handler that records a span while we are here
        try:
            self._recording.describe({**self._process_facts(), **self._facts})
            on_signal = self._lifecycle.on_signal_byte
            self._writer = Writer(self._recording, self._pool, self._buffers, on_signal)
        except Exception as error:  # noqa: BLE001  # such as: no file or thread is left, or Python is ending
            self._stopped = True
            self._pool.close()
            self._recording.warn(f"cannot record: {error}")
        self._writer_is_starting = False

    def _new_name_id(self, text: str) -> int:
        number = self._name_ids.get(text) or self._recording.add_name(text)
        if number < MAX_NAMES:
            self._name_ids[text] = number
        return number

    def _process_facts(self) -> dict[str, object]:
        """Return what the header says before any framework has spoken; asked late, when a rank knows its own."""
        return {
            "format": "stagescope recording",
            "version": FORMAT_VERSION,
            "run": os.environ.get("STAGESCOPE_RUN") or os.environ.get("TORCHELASTIC_RUN_ID", ""),
            "rank": _from_environment(_RANK_VARIABLES, 0),
            "world_size": _from_environment(_WORLD_SIZE_VARIABLES, None),
            "local_rank": _from_environment(("LOCAL_RANK",), None),
            "host": os.uname().nodename,
            "boot": boot_id(),
            "pid": os.getpid(),
            "process_start_ns": self._began_ns,
            "clock": CLOCK_NAME,
            "python": sys.version.split()[0],
        }


def _from_environment(variables: tuple[str, ...], default: int | None) -> int | None:
    for variable in variables:
        value = os.environ.get(variable, "")
        if value.isdecimal():
            return int(value)
    return default
