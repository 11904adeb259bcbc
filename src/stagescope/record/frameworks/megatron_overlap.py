"""Megatron's merged forward and backward: one call, two actions that overlap.

``combined_forward_backward_step`` (megatron-core 0.16.1, pipeline_parallel/combined_1f1b.py) runs the layers of two
micro-batches in turn. Where the pipeline is interleaved it is given functions to call before and after each of
the two: they wait for what is received and send what was made. So the forward lasts from the end of
``pre_forward`` to the begin of ``post_forward``, and the backward alike. The last stage's loss and the first stage's
embedding come after that, and send nothing: there a action lasts to the end of the call. What else is left of a
backward once its gradient is sent, the weight gradient that is delayed to hide the transfer, is recorded as
``other`` under its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.calls import harmless
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
    """One of the two actions of a merged call; one that `sends` has ended when it does."""

    kind: int
    place: Place
    sends: bool


class Half:
    """One of the two actions while it runs."""

    def __init__(self, recorder: Recorder, part: Part, pair: int) -> None:
        self.recorder = recorder
        self.part = part
        self._pair = pair
        self._token = recorder.timer.begin()
        self._ended_ns = 0

    def after(self, wait: Function) -> Function:
        """Return `wait` so that the action begins at its end."""

        def pre(*args: Any, **kwargs: Any) -> Any:
            result = wait(*args, **kwargs)
            self._token = self.recorder.timer.begin()
            return result

        return pre

    def before(self, send: Function) -> Function:
        """Return `send` so that the action ends where it begins, and that what is sent bears the action."""

        def post(made: Any, *args: Any, **kwargs: Any) -> Any:
            if self.part.sends:
                self._end()
                self._tag(made)
            return send(made, *args, **kwargs)

        return post

    def end_call(self) -> None:
        """Record the action, or what the call still did after it."""
        if not self._ended_ns:
            self._end()
        elif self.part.kind == BACKWARD:
            name = self.recorder.name_id(TAIL)
            self.recorder.emit(OTHER, self._ended_ns, now_ns(), *self.part.place, name=name)

    def _end(self) -> None:
        self.recorder.timer.end(self._token, self.part.kind, *self.part.place, 0, self._pair)
        self._ended_ns = now_ns()

    @harmless()
    def _tag(self, made: Any) -> None:
        tag(made, self.part.place)


def run_overlapped(recorder: Recorder, parts: list[Part], call: Function, keywords: dict[str, Any]) -> Any:
    """Return what the merged call returns, recorded as its parts: one action, or two with the same pair number."""
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
