"""Spans and step ranges that a training script marks by hand."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagescope.record import session
from stagescope.record.clock import now_ns
from stagescope.vocabulary.kinds import BY_NAME
from stagescope.vocabulary.recording import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from stagescope.record.recorder import Recorder

_CODES = {name: kind.code for name, kind in BY_NAME.items()}
_OTHER = _CODES["other"]
_NUMBERS = ("chunk", "peer", "size_bytes")


class span:  # noqa: N801  # used as a function: with span("forward", microbatch=3, stage=1)
    """Record the body of a ``with`` block as one span of `kind`.

    `kind` is spelled as in vocabulary/kinds.py; any other word is recorded as kind ``other`` under that name.
    `stage` is the global stage, `microbatch` counts from 0. `details` may hold `chunk` (local), `peer` (the global rank
    at the other end of a transfer), `size_bytes` of a transfer, and `name`. Costs nothing but the call where nothing
    is being recorded. An exception in the body passes through; the span then ends where it was raised.

    >>> with span("forward", microbatch=0, stage=1):
    ...     pass
    """

    __slots__ = ("_details", "_kind", "_microbatch", "_stage", "_start_ns")

    def __init__(
        self,
        kind: str,
        *,
        microbatch: int | None = None,
        stage: int | None = None,
        **details: int | str | None,
    ) -> None:
        self._kind = kind
        self._microbatch = microbatch
        self._stage = stage
        self._details = details

    def __enter__(self) -> None:
        self._start_ns = now_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder = session.recorder
        if recorder is None or not recorder.enabled:
            return
        end_ns = now_ns()
        stage = NONE if self._stage is None else self._stage
        microbatch = NONE if self._microbatch is None else self._microbatch
        try:
            code = None if self._details else _CODES.get(self._kind)
        except TypeError:  # a kind that cannot be a key is no word either; it is recorded as it spells itself
            code = None
        if code is None:
            _emit_detailed(recorder, self._kind, (self._start_ns, end_ns, stage, microbatch), self._details)
        else:
            recorder.emit(code, self._start_ns, end_ns, stage, microbatch)


def _emit_detailed(
    recorder: Recorder,
    kind: str,
    when_and_what: tuple[int, int, int, int],
    details: dict[str, int | str | None],
) -> None:
    """Record a span that has a name or more fields than most; an unknown detail becomes part of the name."""
    kind = kind if isinstance(kind, str) else _text(kind)
    given = {key: value for key, value in details.items() if value is not None}
    numbers: dict[str, Any] = {
        key: given.pop(key) for key in _NUMBERS if hasattr(given.get(key), "__index__")
    }
    name = _text(given.pop("name", "" if kind in _CODES else kind))
    name = " ".join(filter(None, [name, *(f"{key}={_text(value)}" for key, value in given.items())]))
    recorder.emit(
        _CODES.get(kind, _OTHER), *when_and_what, **numbers, name=recorder.name_id(name) if name else 0
    )


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
    if exit_after and step >= stop > start and recorder.spans_seen:
        _store_and_exit()
    recorder.begin_step(int(step))  # numpy's integers are none to isinstance
    recorder.enabled = wanted = wanted and recorder.enabled
    seen_before = recorder.spans_seen
    yield wanted
    if recorder.spans_seen > seen_before:
        recorder.enabled = False
        recorder.flush_soon()
        if exit_after and step == stop - 1:
            _store_and_exit()


def _store_and_exit() -> None:
    session.stop()
    sys.exit(0)
