"""Sends and receives, each named by the pass that made or needs what it carries.

The call that moves a tensor is seldom told its micro-batch, but the very tensor comes from one pass and goes into
another, so the message is known by it. A receive is therefore recorded when it is used, with the times of its call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import UNKNOWN, Kept, Place
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder

SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD = (
    BY_NAME[name].code for name in ("send_forward", "recv_forward", "send_backward", "recv_backward")
)
_RECEIVES = (RECV_FORWARD, RECV_BACKWARD)


class Message(NamedTuple):
    """One transfer: what it is, who is at the other end, how much, and when the host was in it."""

    kind: int
    peer: int
    size_bytes: int
    start_ns: int
    end_ns: int


class Transfers:
    """Follows each message from the call that moves it to the pass that it belongs to.

    `blocks` says that a call returns when its message has arrived, as on a CPU; else it only queues the transfer, and
    no wait is claimed.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.blocks = False
        self._made = Kept()
        self._under_way = Kept()
        self._unused: dict[int, Message] = {}

    def made(self, tensors: Any, place: Place) -> None:
        """Remember which pass made what may be sent next."""
        if self.recorder.enabled:
            self._made.keep(first_of(tensors), place)

    def made_by(self, tensors: Any) -> Place:
        """Return the pass that made something."""
        found: Place = self._made.find(first_of(tensors), UNKNOWN)
        return found

    def sent(self, tensors: Any, message: Message) -> None:
        """Record a send, named by the pass that made what it carries."""
        self._emit(message, self._made.take(first_of(tensors), UNKNOWN))

    def received(self, tensors: Any, message: Message) -> None:
        """Remember a receive until the pass comes that uses what it brought."""
        first = first_of(tensors)
        if first is None:
            self._emit(message, UNKNOWN)
            return
        self._under_way.keep(first, message)
        self._unused[id(message)] = message

    def arrived(self, tensors: Any, place: Place) -> None:
        """Record the receive that brought what a pass uses."""
        message = self._under_way.take(first_of(tensors))
        if message is not None:
            self._unused.pop(id(message), None)
            self._emit(message, place)

    def close(self) -> None:
        """Record the receives whose pass was not seen, without its number, and forget everything."""
        for message in self._unused.values():
            self._emit(message, UNKNOWN)
        self._unused.clear()
        self._under_way.clear()
        self._made.clear()

    def _emit(self, message: Message, place: Place) -> None:
        kind, peer, size_bytes, start_ns, end_ns = message
        waited = self.blocks and kind in _RECEIVES
        wait = (start_ns, end_ns) if waited else (NONE, NONE)
        self.recorder.emit(kind, start_ns, end_ns, *place, peer, size_bytes, *wait)


def all_of(tensors: Any) -> tuple[Any, ...]:
    """Return the tensors of what a stage takes or gives: one, a tuple or list, or a dict of them."""
    if isinstance(tensors, dict):
        return tuple(tensors.values())
    if isinstance(tensors, (tuple, list)):
        return tuple(tensors)
    return () if tensors is None else (tensors,)


def first_of(tensors: Any) -> Any:
    """Return the tensor by which a message is known, None where there is no message."""
    return next((tensor for tensor in all_of(tensors) if tensor is not None), None)


def bytes_in(tensors: Any) -> int:
    """Return how many bytes torch's tensors hold, `NONE` where that cannot be told."""
    try:
        return sum(tensor.numel() * tensor.element_size() for tensor in all_of(tensors))
    except Exception:  # noqa: BLE001  # what a stage gives may hold anything; the transfer is known all the same
        return NONE
