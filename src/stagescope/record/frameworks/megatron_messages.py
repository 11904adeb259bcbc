"""Megatron's sends and receives, from their issue through the wait for them to the action that uses the data.

Both functions that issue operations are wrapped (megatron-core 0.16.1, pipeline_parallel/p2p_communication.py:
``_batched_p2p_ops`` returns a list of handles, ``_p2p_ops`` a dict of them by direction), because all communication
goes through them and they have the tensors, the peers and the handles. A sent tensor carries its action, which was
attached when the action ended. A received tensor gets its action from the call that takes it as an argument, so
nothing is inferred from the order; a tensor that no call takes has no micro-batch.

Not recorded are the shapes that ``variable_seq_lengths`` sends in advance, and anything sent outside of Megatron's
own three schedules: only in those is it certain that a tensor for the next rank is an activation (MindSpeed's V turns
back).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

PLACE, MESSAGE = "_stagescope_place", "_stagescope_message"
"""Tensor attributes: the (stage, micro-batch, chunk) that produced it, and the message that brought it."""

NO_PLACE = (NONE, NONE, NONE)

SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD = (
    BY_NAME[name].code for name in ("send_forward", "recv_forward", "send_backward", "recv_backward")
)
DIRECTIONS = (
    ("send_prev", "prev_pipeline_rank", SEND_BACKWARD),
    ("recv_prev", "prev_pipeline_rank", RECV_FORWARD),
    ("send_next", "next_pipeline_rank", SEND_FORWARD),
    ("recv_next", "next_pipeline_rank", RECV_BACKWARD),
)
"""In the order in which ``_batched_p2p_ops`` issues them."""


def tensors_in(value: Any) -> Sequence[Any]:
    """Return the tensors in a tensor, a list, or a dict of them (with several modules)."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors_in(each)]
    return () if value is None else (value,)


def tag(value: Any, place: tuple[int, int, int]) -> None:
    """Attach the place of an action to the tensors it produced."""
    for tensor in tensors_in(value):
        setattr(tensor, PLACE, tuple(place))  # a plain tuple, because a tensor may be pickled


def tagged(value: Any) -> tuple[int, int, int] | None:
    """Return the place attached to the first tensor that has one."""
    for tensor in tensors_in(value):
        place = getattr(tensor, PLACE, None)
        if place is not None:
            return place  # type: ignore[no-any-return]  # set by `tag`
    return None


class Message:
    """One tensor in transit."""

    __slots__ = (
        "action_is_known",
        "chunk",
        "end_ns",
        "kind",
        "microbatch",
        "peer",
        "size_bytes",
        "stage",
        "start_ns",
        "step",
        "wait_end_ns",
        "wait_start_ns",
        "waits",
    )  # fmt: skip

    def __init__(self, kind: int, peer: int, size_bytes: int, step: int) -> None:
        self.kind = kind
        self.peer = peer
        self.size_bytes = size_bytes
        self.step = step
        self.stage, self.microbatch, self.chunk = NO_PLACE
        self.action_is_known = False
        self.waits = False
        self.start_ns = self.end_ns = self.wait_start_ns = self.wait_end_ns = NONE

    @property
    def is_receive(self) -> bool:
        """Whether this rank receives it."""
        return self.kind in (RECV_FORWARD, RECV_BACKWARD)

    def belongs_to(self, place: tuple[int, int, int]) -> None:
        """Set the action that the message belongs to."""
        self.stage, self.microbatch, self.chunk = place
        self.action_is_known = True


class Handle:
    """Replaces a handle that Megatron waits for, and times that wait."""

    __slots__ = ("_follower", "_messages", "_work")

    def __init__(self, work: Any, messages: list[Message], follower: Messages) -> None:
        self._work = work
        self._messages = messages
        self._follower = follower

    def __getattr__(self, name: str) -> Any:  # all other attributes of a handle
        return getattr(self._work, name)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        """Wait like the original handle."""
        messages, self._messages = self._messages, []
        return self._follower.time_wait(messages, partial(self._work.wait, *args, **kwargs))


class Messages:
    """Follows each message from its issue to the end of the wait for it and to its action."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.default_place = NO_PLACE
        self.is_on = False
        self._open: set[Message] = set()

    def watch_issue(self, original: Function) -> Function:
        """Return the wrapper of a function that issues operations and returns their handles."""

        def issue(*args: Any, **kwargs: Any) -> Any:
            if not self.is_on or not self.recorder.enabled:
                return original(*args, **kwargs)
            start_ns = now_ns()
            handles = original(*args, **kwargs)
            messages = self._begin(kwargs, start_ns, now_ns())
            return self._watched(handles, messages) or handles

        return issue

    def time_wait(self, messages: list[Message], wait: Callable[[], Any]) -> Any:
        """Return the result of `wait` and record its time.

        A receive is timed on the device's clock, because NCCL blocks the stream and not the host.
        """
        if any(message.is_receive for message in messages):
            timer = self.recorder.timer
            start = timer.begin()
            result = wait()
            for message in messages:
                message.waits = True
            timer.resolve(partial(self._waited, messages), start, timer.begin())
        else:
            start_ns = now_ns()
            result = wait()
            self._waited(messages, start_ns, now_ns())
        return result

    def used_by(self, value: Any, place: tuple[int, int, int]) -> None:
        """Assign the action that takes received tensors."""
        for tensor in tensors_in(value):
            message = getattr(tensor, MESSAGE, None)
            if message is not None and not message.action_is_known:
                message.belongs_to(place)
                self._settle(message)

    def close(self) -> None:
        """Record the messages without a wait or an action, discard them, and stop following."""
        self.is_on = False
        for message in list(self._open):
            message.action_is_known = True
            is_pending = (
                message.waits and message.wait_end_ns == NONE
            )  # on a device, whose clock is read later
            if not is_pending:
                self._emit(message)
        self._open.clear()

    @never_raises(default=())
    def _begin(self, keywords: Mapping[str, Any], start_ns: int, end_ns: int) -> dict[str, Message]:
        """Return a message for each tensor that is sent or received, by direction."""
        messages = {}
        for direction, peer, kind in DIRECTIONS:
            tensor = keywords.get(f"tensor_{direction}")
            if tensor is None:
                continue
            rank = keywords.get(peer)
            size_bytes = tensor.numel() * tensor.element_size()
            message = Message(kind, rank if isinstance(rank, int) else NONE, size_bytes, self.recorder.step)
            message.start_ns, message.end_ns = start_ns, end_ns
            message.stage, _, message.chunk = self.default_place
            if message.is_receive:
                self._attach(message, tensor)
            else:
                message.belongs_to(tagged(tensor) or self.default_place)
            messages[direction] = message
            self._open.add(message)
        return messages

    @never_raises()
    def _attach(self, message: Message, tensor: Any) -> None:
        """Attach a message to the tensor that it brings. The message does not reference the tensor."""
        setattr(tensor, MESSAGE, message)

    @never_raises()
    def _watched(self, handles: Any, messages: dict[str, Message]) -> Any:
        """Return handles that report the waits for them, in the container that Megatron expects."""
        if not messages or not handles:
            return None
        if isinstance(handles, dict):
            return {
                name: Handle(work, [messages[name]] if name in messages else [], self)
                for name, work in handles.items()
            }
        if len(handles) == len(messages):
            return [
                Handle(work, [message], self)
                for work, message in zip(handles, messages.values(), strict=True)
            ]
        *others, last = handles  # coalesced by NCCL: one handle for all
        return [*others, Handle(last, list(messages.values()), self)]

    def _waited(self, messages: list[Message], start_ns: int, end_ns: int) -> None:
        for message in messages:
            message.wait_start_ns, message.wait_end_ns = start_ns, end_ns
            self._settle(message)

    def _settle(self, message: Message) -> None:
        """Record a message once its wait has ended and its action is known."""
        if message.action_is_known and message.wait_end_ns != NONE:
            self._emit(message)
            self._open.discard(message)

    def _emit(self, message: Message) -> None:
        arrived = message.is_receive and message.wait_end_ns != NONE
        self.recorder.emit(
            message.kind,
            message.start_ns,
            message.wait_end_ns if arrived else message.end_ns,
            message.stage,
            message.microbatch,
            message.chunk,
            message.peer,
            message.size_bytes,
            message.wait_start_ns,
            message.wait_end_ns,
            step=message.step,
        )
