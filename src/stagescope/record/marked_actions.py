"""Actions and steps that a training script marks with ``with`` blocks: the loop of a hand-written pipeline."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stagescope.record import session
from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import (
    ACTIONS,
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Place,
    begin_action,
    end_action,
    stepping,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from stagescope.record.recorder import Recorder


class MarkedAction:
    """A ``with`` block that is recorded as one action, or as other work under a name.

    An action is timed where it computes: on the device, if the training uses one. Collectives inside it are counted
    as those inside the actions of a framework are.
    """

    __slots__ = ("_before", "_code", "_name", "_place", "_recorder", "_token")

    def __init__(self, code: int, place: Place, name: str = "") -> None:
        self._code = code
        self._place = place
        self._name = name
        self._recorder: Recorder | None = None

    def __enter__(self) -> None:
        recorder = session.recorder
        if recorder is None or not recorder.enabled:
            return
        self._recorder = recorder
        place = self._place
        if recorder.mirror is not None:
            recorder.mirror.open(self._code, place.stage, place.microbatch, self._name)
        self._before = recorder.action
        if self._code in ACTIONS:
            recorder.has_actions = True
            begin_action(recorder, self._code, place)
        self._token = recorder.timer.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.action = self._before
        if self._code in ACTIONS:
            end_action(recorder, self._token, self._code, self._place)
        else:
            name = recorder.name_id(self._name) if self._name else 0
            recorder.timer.end(self._token, self._code, *self._place, name)
        if recorder.mirror is not None:
            recorder.mirror.close()


def forward(*, microbatch: int, stage: int, chunk: int | None = None) -> MarkedAction:
    """Return a context manager that records its body as the forward of one micro-batch through one stage.

    `microbatch` counts from 0 in each step. `stage` is the global stage; `chunk` is the local model chunk of a rank
    that has several stages. Mark the computation only: sends, receives and the waits for them belong outside. While
    the process is not recording, the body just runs. An exception propagates; the action ends where it was raised.

    >>> with forward(microbatch=0, stage=1):
    ...     pass
    """
    return MarkedAction(FORWARD, _place(stage, microbatch, chunk))


def backward(*, microbatch: int, stage: int, chunk: int | None = None) -> MarkedAction:
    """Return a context manager that records its body as a full backward; the arguments are those of `forward`."""
    return MarkedAction(BACKWARD, _place(stage, microbatch, chunk))


def backward_input(*, microbatch: int, stage: int, chunk: int | None = None) -> MarkedAction:
    """Return a context manager for the part of a split backward that computes the gradient of the stage's input."""
    return MarkedAction(BACKWARD_INPUT, _place(stage, microbatch, chunk))


def backward_weight(*, microbatch: int, stage: int, chunk: int | None = None) -> MarkedAction:
    """Return a context manager for the part of a split backward that computes the gradients of the weights."""
    return MarkedAction(BACKWARD_WEIGHT, _place(stage, microbatch, chunk))


@contextmanager
def step(number: int | None = None) -> Iterator[None]:
    """Record the body as one training step: its number is `number`, or one more than that of the last step.

    Needed only where no framework runs the schedule. Without it, the steps of marked actions are found when the
    recording is read: a step ends with the optimizer, or where an action is repeated. ``--steps A:B`` needs it.

    >>> with step():
    ...     pass
    """
    recorder = session.recorder
    if recorder is None:
        yield
        return
    start_ns = recorder.begin_step(None if number is None else int(number))
    with stepping(recorder):
        yield
    if session.recorder is recorder:
        recorder.end_step(start_ns)


def _place(stage: Any, microbatch: Any, chunk: Any) -> Place:
    return Place(number_of(stage), number_of(microbatch), number_of(chunk))


def number_of(value: Any) -> int:
    """Return `value` as an integer, `NONE` if it is not one."""
    if type(value) is int:
        return value
    try:
        return NONE if value is None else int(value.__index__())
    except (AttributeError, TypeError):
        return NONE
