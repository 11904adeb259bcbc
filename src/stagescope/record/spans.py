"""Spans and step ranges that a training script marks by hand."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagescope.record import session
from stagescope.record.buffers import RECORD_BYTES
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.records import is_packing_error, pack_plain
from stagescope.vocabulary.kinds import BY_NAME, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from stagescope.record.recorder import Recorder

_CODES = {name: kind.code for name, kind in BY_NAME.items()}
_OTHER = _CODES["other"]
_COMPUTE = frozenset(name for name, kind in BY_NAME.items() if kind.lane == COMPUTE)
_NUMBERS = ("chunk", "peer", "size_bytes")


def span(
    kind: str,
    *,
    microbatch: int | None = NONE,
    stage: int | None = NONE,
    **details: int | str | None,
) -> Span:
    """Return a context manager that records its body as one span of `kind`.

    `kind` is one of the names in vocabulary/kinds.py; any other text is recorded as kind ``other`` with that name.
    `stage` is the global stage, `microbatch` counts from 0. `details` may contain `chunk` (local), `peer` (the global
    rank at the other end of a transfer), `size_bytes` of a transfer, and `name`. While the process is not recording,
    the cost is that of the call. An exception in the body propagates; the span ends where it was raised.

    >>> with span("forward", microbatch=0, stage=1):
    ...     pass
    """
    # A function instead of a class with __init__: keyword arguments of a class are passed in a dictionary, which
    # costs 0.1 us.
    if details:
        detailed = DETAILED()
        detailed.details = details
        marked: Span = detailed
    else:
        marked = PLAIN()
    marked.kind = kind
    marked.microbatch = microbatch
    marked.stage = stage
    return marked


class Span:
    """A ``with`` block that is timed on the host's clock; created by `span`."""

    __slots__ = ("kind", "microbatch", "stage", "start_ns")  # each additional slot costs 10 ns

    kind: str
    microbatch: int | None
    stage: int | None
    start_ns: int

    def __enter__(self) -> None:
        self.start_ns = now_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The body of Recorder.emit inlined for the fields of a plain span: a call would be most of the cost of a
        # span. All unusual cases fall back to emit.
        end_ns = now_ns()
        try:
            buffer = session.storage.buffer
            if buffer is None:  # not recording
                return
            tail = buffer.plain_tails[self.kind]
            chunk = buffer.chunk
            used = chunk.used  # signal handlers do not run between this line and the packing
            pack_plain(chunk.data, used, self.start_ns, end_ns, session.plain_middle, self.stage, self.microbatch,
                       tail)  # fmt: skip
        except Exception as unusual:  # first span of a thread, full chunk, a None, an unknown kind
            if not is_packing_error(unusual):
                buffer.dropped += 1  # type: ignore[union-attr]  # not None: packing came after it
                raise
        else:
            if chunk.used == used:  # otherwise a signal handler has recorded a span in the same slot
                buffer.seen.spans = True
                chunk.used = used + RECORD_BYTES
                return
        recorder = session.recorder
        if recorder is None or not recorder.enabled:
            return
        if not hasattr(recorder.local, "buffer"):  # a training that only marks spans may have no steps
            recorder.timer.begin_step()  # looks for a device
        _emit(recorder, self, end_ns, {})


class DetailedSpan(Span):
    """A span with details, or an action on a device that has a clock of its own."""

    __slots__ = ("details", "token")

    details: dict[str, int | str | None]
    token: object

    def __enter__(self) -> None:
        recorder = session.recorder
        self.start_ns = now_ns()
        self.token = None
        if recorder is None or not recorder.enabled or recorder.timer.device is None:
            return
        if isinstance(self.kind, str) and self.kind in _COMPUTE:
            self.token = recorder.timer.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        end_ns = now_ns()
        recorder = session.recorder
        if recorder is not None and recorder.enabled:
            _emit(recorder, self, end_ns, getattr(self, "details", {}), self.token)


PLAIN: type[Span] = Span
DETAILED: type[DetailedSpan] = DetailedSpan
"""The classes that `span` instantiates. To observe each span, replace both with subclasses."""


def time_on_device() -> None:
    """Time spans of the compute lane on the device, like the actions of the frameworks."""
    global PLAIN  # noqa: PLW0603  # an attribute lookup would cost each span 20 ns
    if PLAIN is Span:
        PLAIN = DetailedSpan


def _emit(
    recorder: Recorder,
    marked: Span,
    end_ns: int,
    details: dict[str, int | str | None],
    token: object = None,
) -> None:
    """Record a span that is not plain. Unknown details are appended to the name."""
    kind = marked.kind if isinstance(marked.kind, str) else _text(marked.kind)
    given = {key: value for key, value in details.items() if value is not None}
    numbers: dict[str, Any] = {
        key: given.pop(key) for key in _NUMBERS if hasattr(given.get(key), "__index__")
    }
    name = given.pop("name", "" if kind in _CODES else kind)
    name = name if isinstance(name, str) else _text(name)
    name = " ".join(filter(None, [name, *(f"{key}={_text(value)}" for key, value in given.items())]))
    place = (_number(marked.stage), _number(marked.microbatch))
    number = recorder.name_id(name) if name else 0
    if token is None:
        recorder.emit(_CODES.get(kind, _OTHER), marked.start_ns, end_ns, *place, **numbers, name=number)
    else:
        recorder.timer.end(token, _CODES[kind], *place, numbers.get("chunk", NONE), number)


def _number(value: int | None) -> int:
    return NONE if value is None else value


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001  # __str__ of an arbitrary object must not stop the training
        return f"<{type(value).__name__}>"


@contextmanager
def profile_range(step: int, start: int, stop: int, exit_after: bool = False) -> Iterator[bool]:  # noqa: FBT001, FBT002  # Paddle's signature
    """Record training step `step` if ``start <= step < stop``; yield whether it is recorded.

    Follows Paddle's ``job_schedule_profiler_range``: `start` is included, `stop` is excluded, and nothing is recorded
    if ``start >= stop``. Starts the recorder if necessary. With `exit_after` the process exits with status 0 once
    step ``stop
    - 1`` is recorded and stored. Two differences are deliberate. An exception in the body propagates instead of being
      replaced by the exit. And where the body is only a guard and the step runs after it, recording continues after
      the body and the exit is postponed to the next call, so the last step is recorded too.
    """
    wanted = start <= step < stop
    if wanted:
        session.start()
    recorder = session.recorder
    if recorder is None:
        yield False
        return
    recorded_before = recorder.forget_spans()
    if exit_after and step >= stop > start and recorded_before:
        _store_and_exit()
    recorder.begin_step(int(step))  # numpy integers are not instances of int
    wanted = wanted and recorder.enabled
    recorder.switch(on=wanted)
    yield wanted
    if recorder.has_spans:
        recorder.switch(on=False)
        if exit_after and step == stop - 1:
            _store_and_exit()


def _store_and_exit() -> None:
    session.stop()
    sys.exit(0)
