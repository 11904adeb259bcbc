"""The sends and receives of ColossalAI's pipeline schedules.

colossalai/pipeline/p2p.py, ``PipelineP2PCommunication``: one method for each combination of a send and a receive. From
0.4.0 on a method returns the handles of its operations for the schedule to wait for; the list is empty if it has
waited itself. Before, all methods waited. ``send_forward_recv_forward`` and its counterpart are also called when
there is only one of the two, or neither, to be done, and state which by two flags.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.frameworks.runs import UNKNOWN
from stagescope.record.frameworks.transfers import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Message,
    Transfers,
    Wait,
    all_of,
    bytes_in,
)
from stagescope.record.frameworks.works import works_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from stagescope.record.calls import Call
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

SENT = {"send_forward": (SEND_FORWARD, "next_rank"), "send_backward": (SEND_BACKWARD, "prev_rank")}
RECEIVED = {"recv_forward": (RECV_FORWARD, "prev_rank"), "recv_backward": (RECV_BACKWARD, "next_rank")}
"""The halves of a method's name: the kind of span, and the argument that contains the peer."""


class ColossalaiTransfers(Transfers):
    """The transfers of one process. `queued_place` is the place of the output that is being sent from a queue."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self.queued_place = UNKNOWN

    def observe_call(self, call: Call) -> Observation:
        """Observe a method that sends, receives, or both."""
        start_ns, before = now_ns(), self.recorder.timer.begin()
        result = yield
        received, handles = _parts_of(result)
        times = (start_ns, now_ns())
        self._note_sent(call, times)
        wait = Wait()
        if handles:
            self._watch(call, received, handles, wait)
        else:
            wait.note(before, self.recorder.timer.begin())
        self._note_received(call, received, times, wait)
        return result

    @never_raises()
    def _note_sent(self, call: Call, times: tuple[int, int]) -> None:
        sent = sent_by(call)
        for kind, argument in _halves(call.name, SENT):
            if sent is not None and call.get("is_send", default=True):
                message = Message(kind, _peer_of(call, argument), bytes_in(sent), *times)
                self.sent(sent, message, self.queued_place)

    @never_raises()
    def _note_received(self, call: Call, received: Any, times: tuple[int, int], wait: Wait) -> None:
        for kind, argument in _halves(call.name, RECEIVED):
            if call.get("is_recv", default=True):
                peer = _peer_of(call, argument)
                message = Message(kind, peer, bytes_in(received), *times, wait=wait)
                self.received(received, message)

    @never_raises()
    def _watch(self, call: Call, received: Any, handles: Sequence[object], wait: Wait) -> None:
        """Watch the handles of a receive: those of its tensors, all if the backend has fewer handles than tensors."""
        if not _halves(call.name, RECEIVED) or not call.get("is_recv", default=True):
            return
        sends = _tensors_in(sent_by(call)) if call.get("is_send", default=True) else 0
        receives = _tensors_in(received)
        if len(handles) == sends + receives:
            handles = handles[:receives] if call.get("send_first") is False else handles[sends:]
        works = works_of(self.recorder)
        for handle in handles:
            works.watch(handle, wait.note)


def sent_by(call: Call) -> Any:
    """Return the object that a call sends, None if there is none."""
    return call.get("output_object", call.get("input_object"))


def _parts_of(result: Any) -> tuple[Any, Sequence[object]]:
    """Return what a call received, and the handles to wait for."""
    match result:
        case (received, list(handles)) if isinstance(result, tuple):
            return received, handles
        case _:
            return result, ()


def _halves(name: str, known: dict[str, tuple[int, str]]) -> list[tuple[int, str]]:
    return [known[half] for half in re.findall(r"(?:send|recv)_(?:forward|backward)", name) if half in known]


def _peer_of(call: Call, argument: str) -> int:
    """Return the rank at the other end; without an argument it is the neighbor."""
    peer = call.get(argument)
    if peer is None:
        peer = getattr(call.owner.stage_manager, f"get_{argument}")()
    return int(peer)


def _tensors_in(value: Any) -> int:
    return sum(hasattr(item, "numel") for item in all_of(value))
