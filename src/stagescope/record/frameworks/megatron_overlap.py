"""Megatron's merged forward and backward: a single call with two actions that overlap.

``combined_forward_backward_step`` of combined_1f1b.py (megatron-core 0.14.0 to 0.19.2) alternates between the layers of
two micro-batches. In an interleaved pipeline it receives functions to call before and after each of the two: they wait
for the input and send the output. What they do is observed, not the functions themselves:

* each half begins with its first ``ScheduleNode.forward`` or ``ScheduleNode.backward``, the parts of a layer, because
  the first one follows the wait immediately. Without a function that waits it begins with the call;
* it ends when its output is sent, which is right before ``_p2p_ops`` or ``_batched_p2p_ops`` (the exchange of shapes
  for ``variable_seq_lengths`` still counts as part of it). The last stage's loss and the first stage's embedding come
  after that and send nothing; there, an action lasts to the end of the call.

What remains of a backward after its gradient is sent (the weight gradient, delayed to hide the transfer) is recorded as
``other`` under its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, Place, begin_action, leave_action
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.calls import Call
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

OTHER = BY_NAME["other"].code
TAIL = "delayed weight gradient"
KIND_OF_NODE = {"forward": FORWARD, "backward": BACKWARD}


class Part(NamedTuple):
    """One of the two actions of a merged call.

    With `waits` it begins after a wait for its input, and with `sends` it ends when its output is sent.
    """

    kind: int
    place: Place
    waits: bool
    sends: bool


class Half:
    """One of the two actions while it is running."""

    def __init__(self, recorder: Recorder, part: Part, pair: int) -> None:
        self.recorder = recorder
        self.part = part
        self._pair = pair
        self._token = recorder.timer.begin()
        self._waits = part.waits
        self._tail: object = None

    def begin(self) -> None:
        """Move the start of the action to now, once, unless it begins with the call."""
        if self._waits:
            self._waits = False
            self._token = self.recorder.timer.begin()

    def before_send(self) -> None:
        """Record the action, once: its output is being sent."""
        if self.part.sends and self._tail is None:
            self._end()

    def end_call(self) -> None:
        """Record the action, or the remaining work of the call after it."""
        if self._tail is None:
            self._end()
        elif self.part.kind == BACKWARD:
            self.recorder.timer.end(self._tail, OTHER, *self.part.place, self.recorder.name_id(TAIL))

    def _end(self) -> None:
        self.recorder.timer.end(self._token, self.part.kind, *self.part.place, 0, self._pair)
        self._tail = self.recorder.timer.begin()


class Overlap:
    """The merged call in progress: its `halves` by kind of action, empty outside of such a call."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.halves: dict[int, Half] = {}

    def observe(self, parts: list[Part]) -> Observation:
        """Record the observed call as one action, or as two with the same pair number."""
        self.recorder.has_actions |= bool(parts)
        pair = self.recorder.new_pair() if len(parts) > 1 else NONE
        self.halves = {part.kind: Half(self.recorder, part, pair) for part in parts}
        if parts:
            begin_action(self.recorder, parts[-1].kind, parts[-1].place)
        try:
            result = yield
            for half in self.halves.values():
                half.end_call()
        finally:
            leave_action(self.recorder)
            self.halves = {}
        return result

    def node(self, call: Call) -> Observation:
        """Observe a part of a layer."""
        half = self.halves.get(KIND_OF_NODE[call.name]) if self.halves else None
        if half is None:
            return
        half.begin()
        yield

    def before_send(self, kind: int) -> None:
        """Note that the output of an action of `kind` is being sent."""
        half = self.halves.get(kind)
        if half is not None:
            half.before_send()
