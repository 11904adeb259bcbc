"""Spans and step ranges that a training script marks by hand."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagescope.record import session
from stagescope.record.buffers import RECORD_BYTES
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.records import is_our_own, pack_plain
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
    """Return what records the body of a ``with`` block as one span of `kind`.

    `kind` is spelled as in vocabulary/kinds.py; any other word is recorded as kind ``other`` under that name.
    `stage` is the global stage, `microbatch` counts from 0. `details` may hold `chunk` (local), `peer` (the global rank
    at the other end of a transfer), `size_bytes` of a transfer, and `name`. Costs nothing but the call where nothing
    is being recorded. An exception in the body passes through; the span then ends where it was raised.

    >>> with span("forward", microbatch=0, stage=1):
    ...     pass
    """
    # A function, as keywords to a class with an __init__ travel in a dictionary, which costs 0.1 us.
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
    """A ``with`` block that is timed on the host's clock; made by `span`."""

    __slots__ = ("kind", "microbatch", "stage", "start_ns")  # each one more costs 10 ns

    kind: str
    microbatch: int | None
    stage: int | None
    start_ns: int

    def __enter__(self) -> None:
        self.start_ns = now_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Recorder.emit again, without a call, for the fields that a plain span has: this is most of what a span
        # costs. Whatever is not as usual is left to emit.
        end_ns = now_ns()
        try:
            buffer = session.here.buffer
            if buffer is None:  # nothing is recorded now
                return
            tail = buffer.plain_tails[self.kind]
            chunk = buffer.chunk
            used = chunk.used  # from here to the packing, no signal is handled
            pack_plain(chunk.data, used, self.start_ns, end_ns, session.plain_middle, self.stage, self.microbatch,
                       tail)  # fmt: skip
        except Exception as unusual:  # the first span of a thread, a full chunk, None, a word of the user's
            if not is_our_own(unusual):
                buffer.dropped += 1  # type: ignore[union-attr]  # there is one: packing came after it
                raise
        else:
            if chunk.used == used:  # else a signal handler has recorded a span in the same place
                buffer.seen.spans = True
                chunk.used = used + RECORD_BYTES
                return
        recorder = session.recorder
        if recorder is None or not recorder.enabled:
            return
        if not hasattr(recorder.local, "buffer"):  # a training that only marks spans may have no steps
            recorder.timer.begin_step()  # which looks for a device
        _emit(recorder, self, end_ns, {})


class CarefulSpan(Span):
    """The same for whatever a span can be: with details, or a action on a device that has a clock of its own."""

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
DETAILED: type[CarefulSpan] = CarefulSpan
"""What `span` makes. Whoever needs to know of each span replaces both by classes of their own."""


def time_on_device() -> None:
    """Have spans of the compute lane timed as the actions of the frameworks are."""
    global PLAIN  # noqa: PLW0603  # an attribute of something else would cost each span 20 ns
    if PLAIN is Span:
        PLAIN = CarefulSpan


def _emit(
    recorder: Recorder,
    marked: Span,
    end_ns: int,
    details: dict[str, int | str | None],
    token: object = None,
) -> None:
    """Record a span that is not plain; an unknown detail becomes part of the name."""
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
    except Exception:  # noqa: BLE001  # the caller's object spells itself, and must not stop the training
        return f"<{type(value).__name__}>"


@contextmanager
def profile_range(step: int, start: int, stop: int, exit_after: bool = False) -> Iterator[bool]:  # noqa: FBT001, FBT002  # the signature users know from Paddle
    """Record training step `step` if ``start <= step < stop``; yield whether it is recorded.

    Has the meaning of Paddle's ``job_schedule_profiler_range``: `start` is included, `stop` is not, and nothing is
    ever recorded if ``start >= stop``. Starts the recorder if nobody has. With `exit_after` the process exits
    with status 0 once step ``stop - 1`` is recorded and stored. Two things differ on purpose: an exception in the body
    stays that exception, and where the body is only a guard and the step runs after it, recording goes on after
    the body and the exit waits for the next call, so that the last step is really recorded.
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
    recorder.begin_step(int(step))  # numpy's integers are none to isinstance
    wanted = wanted and recorder.enabled
    recorder.switch(on=wanted)
    yield wanted
    if recorder.has_spans:
        recorder.switch(on=False)
        recorder.flush_soon()
        if exit_after and step == stop - 1:
            _store_and_exit()


def _store_and_exit() -> None:
    session.stop()
    sys.exit(0)
