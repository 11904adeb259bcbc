"""Sends and receives, each identified by the pass that produced or consumes its data.

The call that moves a tensor rarely receives its micro-batch. But the tensor comes out of one pass and goes into
another, so the message is identified by the tensor. A receive is therefore recorded when its data is used, with the
times of the call that received it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import UNKNOWN, IdentityMap, Place
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder

SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD = (
    BY_NAME[name].code for name in ("send_forward", "recv_forward", "send_backward", "recv_backward")
)
_RECEIVES = (RECV_FORWARD, RECV_BACKWARD)


class Wait:
    """The moments, of the recorder's timer, at which the wait for a message began and ended."""

    __slots__ = ("ended", "started")

    def __init__(self) -> None:
        self.started: Any = None
        self.ended: Any = None

    def note(self, started: Any, ended: Any) -> None:
        """Note a wait for one of the handles of the message: the start of the first and the end of the last count."""
        if self.started is None:
            self.started = started
        self.ended = ended


class Message(NamedTuple):
    """One transfer: kind, rank at the other end, size, and the time that the host spent in the call.

    `is_complete` is False if the call returned without waiting for the message even where calls usually wait. `wait`
    is the wait for its handles, if they are known; it may not have begun when the message is noted.
    """

    kind: int
    peer: int
    size_bytes: int
    start_ns: int
    end_ns: int
    is_complete: bool = True
    wait: Wait | None = None


class Transfers:
    """Follows each message from the call that moves it to the pass that it belongs to.

    `blocks` states that a call returns after its message has arrived, as on a CPU. Otherwise the call only queues the
    transfer, and no wait is recorded.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.blocks = False
        self._made = IdentityMap()
        self._under_way = IdentityMap()
        self._unused: dict[int, Message] = {}

    def made(self, tensors: Any, place: Place) -> None:
        """Remember which pass produced data that may be sent later."""
        if self.recorder.enabled:
            self._made.keep(first_of(tensors), place)

    def sent(self, tensors: Any, message: Message, otherwise: Place = UNKNOWN) -> None:
        """Record a send, with the place of the pass that produced its data, `otherwise` if that is unknown."""
        self._emit(message, self._made.take(first_of(tensors), otherwise))

    def received(self, tensors: Any, message: Message) -> None:
        """Remember a receive until a pass uses its data."""
        first = first_of(tensors)
        if first is None:
            self._emit(message, UNKNOWN)
            return
        self._under_way.keep(first, message)
        self._unused[id(message)] = message

    def arrived(self, tensors: Any, place: Place) -> None:
        """Record the receive that brought the input of a pass."""
        message = self._under_way.take(first_of(tensors))
        if message is not None:
            self._unused.pop(id(message), None)
            self._emit(message, place)

    def close(self) -> None:
        """Record the receives whose data no pass used, without a place, and discard everything."""
        for message in self._unused.values():
            self._emit(message, UNKNOWN)
        self._unused.clear()
        self._under_way.clear()
        self._made.clear()

    def _emit(self, message: Message, place: Place) -> None:
        kind, peer, size_bytes, start_ns, end_ns, is_complete, wait = message
        if wait is not None and wait.ended is not None:
            self._emit_waited(message, wait, place)
            return
        waited = self.blocks and is_complete and kind in _RECEIVES
        times = (start_ns, end_ns) if waited else (NONE, NONE)
        self.recorder.emit(kind, start_ns, end_ns, *place, peer, size_bytes, *times)

    def _emit_waited(self, message: Message, wait: Wait, place: Place) -> None:
        """Record a message that had arrived when the wait for it ended."""
        kind, peer, size_bytes, start_ns, *_ = message
        step = self.recorder.step  # the times may become known in a later step

        def emit(wait_start_ns: int, wait_end_ns: int) -> None:
            times = (wait_start_ns, wait_end_ns)
            self.recorder.emit(kind, start_ns, wait_end_ns, *place, peer, size_bytes, *times, step=step)

        self.recorder.timer.resolve(emit, wait.started, wait.ended)


def all_of(tensors: Any) -> tuple[Any, ...]:
    """Return the tensors in the input or output of a stage: a single one, a tuple, a list, or a dict."""
    if isinstance(tensors, dict):
        return tuple(tensors.values())
    if isinstance(tensors, (tuple, list)):
        return tuple(tensors)
    return () if tensors is None else (tensors,)


def first_of(tensors: Any) -> Any:
    """Return the tensor that identifies a message, None if there is no message."""
    return next((tensor for tensor in all_of(tensors) if tensor is not None), None)


def bytes_in(tensors: Any) -> int:
    """Return the size of torch tensors in bytes, `NONE` if unknown."""
    try:
        return sum(tensor.numel() * tensor.element_size() for tensor in all_of(tensors))
    except Exception:  # noqa: BLE001  # a stage may return any object; the transfer is recorded in any case
        return NONE
