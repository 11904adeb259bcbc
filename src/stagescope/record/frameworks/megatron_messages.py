"""Megatron's sends and receives, from their issue through the wait for them to the action that uses the data.

Both functions that issue operations are observed, ``_batched_p2p_ops`` and ``_p2p_ops`` of p2p_communication.py,
because all transfers of a pipeline go through them and they receive the tensors. A sent tensor is known from the
action that made it; a received one gets its action from the call that takes it as an argument. Both are found by
identity, so nothing is inferred from the order, and a tensor that no call takes has no micro-batch.

Versions differ in what these functions receive and return (megatron-core 0.5.0 to 0.19.2):

* until 0.8 the ranks of the neighbors are not arguments but asked of ``parallel_state``, as is done here;
* ``_p2p_ops`` returns a dict of handles by direction, until 0.9 a list whose order depends on the parity of the rank;
* ``_batched_p2p_ops`` returns a list in the order of `DIRECTIONS`; NCCL joins a batch to one handle.

Not recorded are the shapes that ``variable_seq_lengths`` sends in advance, ``use_ring_exchange_p2p``, and anything sent
outside of Megatron's own three schedules: only in those is it certain that a tensor for the next rank is an activation
(MindSpeed's V turns back).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record import compiled
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.megatron_facts import ask
from stagescope.record.frameworks.megatron_message import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Message,
)
from stagescope.record.frameworks.megatron_overlap import Overlap
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, UNKNOWN, IdentityMap
from stagescope.record.frameworks.works import works_of
from stagescope.record.hooks import prepared

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stagescope.record.calls import Call, Signature
    from stagescope.record.compiled import Places
    from stagescope.record.frameworks.runs import Runs
    from stagescope.record.hooks import Watch
    from stagescope.record.recorder import Recorder

    Numbers = tuple[int, int, int]  # those of a Place

ACTION_THAT_SENDS = {SEND_FORWARD: FORWARD, SEND_BACKWARD: BACKWARD}


class Direction(NamedTuple):
    """One of the four transfers of a call: its name, the side of the peer, and what it is in a pipeline."""

    name: str
    side: str
    kind: int


DIRECTIONS = (
    Direction("send_prev", "prev", SEND_BACKWARD),
    Direction("recv_prev", "prev", RECV_FORWARD),
    Direction("send_next", "next", SEND_FORWARD),
    Direction("recv_next", "next", RECV_BACKWARD),
)
"""In the order in which ``_batched_p2p_ops`` issues them."""

ORDER_BY_PARITY = (
    ("send_next", "recv_prev", "send_prev", "recv_next"),
    ("recv_prev", "send_next", "recv_next", "send_prev"),
)
"""The order in which ``_p2p_ops`` of megatron-core 0.5 to 0.9 issues them, on even and on odd ranks of a pipeline."""


def tensors_in(value: Any) -> Sequence[Any]:
    """Return the tensors in a tensor, a list, or a dict of them (with several modules)."""
    found: list[Any] = []
    waiting = [value]
    for (
        each
    ) in waiting:  # no call of its own for the usual list of one tensor: this runs four times per micro-batch
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, (list, tuple)):
            waiting.extend(each)
        elif each is not None:
            found.append(each)
    return found


class Messages:
    """Follows each message from its issue to the end of the wait for it and to its action.

    `default_place` is what is known of a message without an action, `places` are those of the actions that made a
    tensor. `arriving` are the messages that bring a tensor which an action has yet to use. Transfers are recorded
    while `is_on` is set, and not in the schedule of another framework that uses the functions of Megatron
    (`Runs.observe_alone`).

    Messages that were issued and waited for in the usual way are `transfers` instead, which the wrappers in C fill and
    empty. Before anything else is done with messages, this class takes over what is there.
    """

    def __init__(self, recorder: Recorder, runs: Runs) -> None:
        self.recorder = recorder
        self.runs = runs
        self.overlap = Overlap(recorder)
        self.works = works_of(recorder)
        self.transfers = self.works.transfers
        if self.transfers is not None:
            self.transfers.take_over = self._take_over
        self.default_place = UNKNOWN
        self.is_on = False
        self.places: IdentityMap | Places = compiled.places() or IdentityMap()
        self.arriving = IdentityMap()
        self._open: set[Message] = set()

    @property
    def is_active(self) -> bool:
        """Whether transfers are recorded here and now."""
        return self.is_on and self.recorder.enabled and not self.runs.is_muted

    def open(self) -> None:
        """Record transfers from now on: a schedule begins."""
        self.is_on = True
        if self.transfers is not None:
            self.transfers.is_on = True

    @property
    def default_place(self) -> Numbers:
        """The place of a message without an action."""
        return self._default_place

    @default_place.setter
    def default_place(self, place: Numbers) -> None:
        self._default_place = place
        if self.transfers is not None:
            self.transfers.stage, _, self.transfers.chunk = place

    @prepared
    def issue(self, signature: Signature) -> Watch:
        """Observe a function that issues operations and returns their handles."""
        return Exchanges(self, signature)

    def issued(self, call: Call, handles: Any, start_ns: int, end_ns: int) -> None:
        """Follow the messages of a call that has issued them and returned their handles."""
        messages = {}
        for direction in DIRECTIONS:
            tensor = call.get(f"tensor_{direction.name}")
            if tensor is not None:
                message = self.begin(direction.kind, _peer(call, direction.side), size_of(tensor), [tensor])
                message.start_ns, message.end_ns = start_ns, end_ns
                messages[direction.name] = message
        self._watch(call.name, handles, messages)

    def begin(self, kind: int, peer: int, size_bytes: int, tensors: Sequence[Any]) -> Message:
        """Return a new message that sends `tensors`, or brings them."""
        message = Message(kind, peer, size_bytes, self.recorder.step)
        message.stage, _, message.chunk = self.default_place
        if message.is_receive:
            self.brings(message, tensors)
        else:
            message.belongs_to(self.place_of(tensors) or self._place_of_sender(kind) or self.default_place)
        self._open.add(message)
        return message

    def brings(self, message: Message, tensors: Iterable[Any]) -> None:
        """Remember the tensors that a message brings; neither keeps the other alive."""
        for tensor in tensors:
            self.arriving.keep(tensor, [*self.arriving.find(tensor, ()), message])

    def begin_wait(self, messages: list[Message]) -> Any:
        """Return the current moment of the host, or of the device if there is a receive.

        NCCL blocks the stream of the device and not the host.
        """
        return self.recorder.timer.begin() if _has_receive(messages) else now_ns()

    def end_wait(self, messages: list[Message], start: Any) -> None:
        """Note that a wait that began at `start` has ended."""
        self._wait_ended(messages, start, self.begin_wait(messages))

    def made(self, value: Any, place: Numbers) -> None:
        """Remember the action that made tensors."""
        for tensor in tensors_in(value):
            self.places.keep(tensor, place)

    def place_of(self, value: Any) -> Numbers | None:
        """Return the action that made the first tensor of which it is known."""
        for tensor in tensors_in(value):
            place: Numbers | None = self.places.find(tensor)
            if place is not None:
                return place
        return None

    def used_by(self, value: Any, place: Numbers) -> None:
        """Assign the action that takes received tensors."""
        if self.transfers:
            self._take_over()
        if not self.arriving.values:
            return
        for tensor in tensors_in(value):
            for message in self.arriving.take(tensor, ()):
                if not message.action_is_known:
                    message.belongs_to(place)
                    self._settle(message)

    def close(self) -> None:
        """Record the messages without a wait or an action, discard everything, and stop following."""
        self.is_on = False
        if self.transfers is not None:
            self.transfers.is_on = False
        if self.transfers:
            self._take_over()
        for message in list(self._open):
            message.action_is_known = True
            is_pending = (
                message.waits and message.wait_end_ns == NONE
            )  # on a device, whose clock is read later
            if not is_pending:
                self._emit(message)
        self._open.clear()
        if self.arriving.values:
            self.arriving.clear()
        self.places.clear()
        if self.works.waits:
            self.works.forget(self)

    def _take_over(self) -> None:
        """Follow the messages that the wrappers in C have followed so far.

        Another object may have the address of a handle or tensor that does not exist any more.
        """
        together: dict[int, tuple[Any, list[Message]]] = {}
        for handle, tensor, facts, place, times in (
            self.transfers.take() if self.transfers is not None else ()
        ):
            message = Message(*facts)
            message.stage, message.microbatch, message.chunk = place
            message.start_ns, message.end_ns, *wait = times
            message.action_is_known = not message.is_receive
            self._open.add(message)
            received, work = (refer() if refer is not None else None for _, refer in (tensor, handle))
            if received is not None:
                self.brings(message, [received])
            if work is not None:
                together.setdefault(id(work), (work, []))[1].append(message)
            elif wait[1] != NONE:
                self._wait_ended([message], *wait)
        for work, messages in together.values():
            self._watch_one(work, messages)

    def _place_of_sender(self, kind: int) -> Numbers | None:
        """Return the place of the half of a merged call that is sending: its output is not known before it ends."""
        half = self.overlap.halves.get(ACTION_THAT_SENDS[kind])
        return half.part.place if half is not None else None

    def _watch(self, function: str, handles: Any, messages: dict[str, Message]) -> None:
        """Observe the next wait for each handle. What is neither a list nor a dict is left alone."""
        if isinstance(handles, dict):
            for name, work in handles.items():
                if name in messages:
                    self._watch_one(work, [messages[name]])
        elif isinstance(handles, list) and len(handles) == len(messages):
            ordered = _order_of_handles() if function == "_p2p_ops" else tuple(messages)
            issued = [messages[name] for name in ordered if name in messages]
            for work, message in zip(
                handles, issued, strict=False
            ):  # of an unknown rank, nothing is in order
                self._watch_one(work, [message])
        elif isinstance(handles, list) and len(handles) == 1:
            self._watch_one(handles[0], list(messages.values()))

    def _watch_one(self, work: Any, messages: list[Message]) -> None:
        clock = None if _has_receive(messages) else now_ns
        self.works.watch(work, partial(self._wait_ended, messages), clock)

    def _wait_ended(self, messages: list[Message], start: Any, end: Any) -> None:
        """Note a wait between two moments, which are the host's unless there is a receive."""
        timer = self.recorder.timer
        if timer.device is None or not _has_receive(messages):
            self._waited(messages, start, end)
            return
        for message in messages:
            message.waits = True
        timer.resolve(partial(self._waited, messages), start, end)

    def describe_wait(self, messages: list[Message]) -> Iterator[dict[str, object]]:
        """Yield the messages that a wait in progress is for, see record/process_state.py."""
        from stagescope.record.process_state import message_facts  # only needed when nothing else happens

        for message in messages:
            yield message_facts(message.kind, message.start_ns, stage=message.stage,
                                microbatch=message.microbatch, peer=message.peer)  # fmt: skip

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
        if message.is_recorded:
            return
        message.is_recorded = True
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


class Exchanges:
    """Watches a function that issues operations and returns their handles.

    A wrapper in C takes usual calls. It leaves the handles to `take` that it does not expect.
    """

    kinds = tuple(direction.kind for direction in DIRECTIONS)

    def __init__(self, messages: Messages, signature: Signature) -> None:
        self.messages = messages
        self._signature = signature
        self.is_in_order = signature.name == "_batched_p2p_ops"

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, int] | None:
        """Note the sends of a merged call, which end its halves."""
        messages = self.messages
        if not messages.is_active:
            return None
        call = self._signature.call(args, kwargs)
        for direction in DIRECTIONS if messages.overlap.halves else ():
            if direction.kind in ACTION_THAT_SENDS and call.get(f"tensor_{direction.name}") is not None:
                messages.overlap.before_send(ACTION_THAT_SENDS[direction.kind])
        return call, now_ns()

    def end(self, state: tuple[Call, int], result: Any) -> None:
        """Follow the messages."""
        end_ns = now_ns()
        call, start_ns = state
        self.messages.issued(call, result, start_ns, end_ns)

    def take(self, kwargs: dict[str, Any], start_ns: int, result: Any) -> None:
        """Follow the messages of a call that a wrapper in C has made."""
        self.end((self._signature.call((), kwargs), start_ns), result)

    def abandon(self, state: Any) -> None:
        """Follow nothing of a call that failed."""


def size_of(tensor: Any) -> int:
    """Return the size of a tensor in bytes."""
    return int(tensor.numel() * tensor.element_size())


def _has_receive(messages: list[Message]) -> bool:
    return any(message.is_receive for message in messages)


def _peer(call: Call, side: str) -> int:
    rank = call.get(f"{side}_pipeline_rank")
    if rank is None:
        rank = ask(f"get_pipeline_model_parallel_{side}_rank")
    return rank if isinstance(rank, int) else NONE


def _order_of_handles() -> tuple[str, ...]:
    """Return the order of the handles of ``_p2p_ops``, nothing if the rank that determines it is unknown."""
    rank = ask("get_pipeline_model_parallel_rank")
    return ORDER_BY_PARITY[rank % 2] if isinstance(rank, int) else ()
