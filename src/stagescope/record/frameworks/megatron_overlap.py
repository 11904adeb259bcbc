"""Megatron's merged forward and backward: a single call with two actions that overlap.

``combined_forward_backward_step`` (megatron-core 0.16.1, pipeline_parallel/combined_1f1b.py) alternates between the
layers of two micro-batches. In an interleaved pipeline it receives functions to call before and after each of the
two: they wait for the input and send the output. So the forward lasts from the end of ``pre_forward`` to the begin of
``post_forward``, and the backward accordingly. The last stage's loss and the first stage's embedding come after that
and send nothing; there, an action lasts to the end of the call. What remains of a backward after its gradient is sent
(the weight gradient, delayed to hide the transfer) is recorded as ``other`` under its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.megatron_messages import tag
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, Place
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

OTHER = BY_NAME["other"].code
TAIL = "delayed weight gradient"


class Part(NamedTuple):
    """One of the two actions of a merged call. With `sends`, the action ends when its output is sent."""

    kind: int
    place: Place
    sends: bool


class Half:
    """One of the two actions while it is running."""

    def __init__(self, recorder: Recorder, part: Part, pair: int) -> None:
        self.recorder = recorder
        self.part = part
        self._pair = pair
        self._token = recorder.timer.begin()
        self._ended_ns = 0

    def after(self, wait: Function) -> Function:
        """Return a wrapper of `wait` after which the action begins."""

        def pre(*args: Any, **kwargs: Any) -> Any:
            result = wait(*args, **kwargs)
            self._token = self.recorder.timer.begin()
            return result

        return pre

    def before(self, send: Function) -> Function:
        """Return a wrapper of `send` before which the action ends, and which tags the data that is sent."""

        def post(made: Any, *args: Any, **kwargs: Any) -> Any:
            if self.part.sends:
                self._end()
                self._tag(made)
            return send(made, *args, **kwargs)

        return post

    def end_call(self) -> None:
        """Record the action, or the remaining work of the call after it."""
        if not self._ended_ns:
            self._end()
        elif self.part.kind == BACKWARD:
            name = self.recorder.name_id(TAIL)
            self.recorder.emit(OTHER, self._ended_ns, now_ns(), *self.part.place, name=name)

    def _end(self) -> None:
        self.recorder.timer.end(self._token, self.part.kind, *self.part.place, 0, self._pair)
        self._ended_ns = now_ns()

    @never_raises()
    def _tag(self, made: Any) -> None:
        tag(made, self.part.place)


def run_overlapped(recorder: Recorder, parts: list[Part], call: Function, keywords: dict[str, Any]) -> Any:
    """Return the result of the merged call, recorded as one action or as two with the same pair number."""
    pair = recorder.new_pair() if len(parts) > 1 else NONE
    halves = [Half(recorder, part, pair) for part in parts]
    watched = dict(keywords)
    for half in halves:
        direction = "forward" if half.part.kind == FORWARD else "backward"
        for name, watch in ((f"pre_{direction}", half.after), (f"post_{direction}", half.before)):
            if watched.get(name) is not None:
                watched[name] = watch(watched[name])
    result = call(**watched)
    for half in halves:
        half.end_call()
    return result
