"""Sends and receives of torch.distributed.pipelining, from their issue to the end of the wait for them.

A message is known where a stage creates its P2POp, and is found again by the identity of that object where the schedule
issues it: ``_batch_p2p`` takes a list of operations and returns handles. How many handles it returns, and in which
order, depends on the version and on the backend:

* torch 2.5 to 2.7 return the last handle of ``dist.batch_isend_irecv`` alone, or None.
* torch 2.8 returns the list of handles: one for each operation, or a single one if the backend coalesces (NCCL).
* torch 2.14 with one process group per direction or edge calls ``_batch_p2p`` again for the operations of each group,
  sorted by group, so the order of the handles is not that of the operations.

A handle is therefore assigned only in the innermost call, where all operations belong to one group: one handle for
each operation, in order, or one for all. For any other number of handles the messages are recorded without a wait: a
receive then ends when the action begins that uses its data.
"""

from __future__ import annotations

from functools import partial
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import ref

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import BACKWARD, BACKWARD_INPUT, FORWARD, IdentityMap
from stagescope.record.frameworks.torch_passes import FIRST
from stagescope.record.frameworks.works import works_of
from stagescope.record.hooks import Creation, Issues
from stagescope.record.wrappers import UNKNOWN
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stagescope.record.calls import Parameter, Signature
    from stagescope.record.recorder import Recorder

SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD = (
    BY_NAME[name].code for name in ("send_forward", "recv_forward", "send_backward", "recv_backward")
)
_RECEIVES = (RECV_FORWARD, RECV_BACKWARD)
_RECEIVE_OF_ACTION = {FORWARD: RECV_FORWARD, BACKWARD: RECV_BACKWARD, BACKWARD_INPUT: RECV_BACKWARD}


Message = tuple[int, int, int, int, int]
"""One tensor to send or receive, the message of one P2POp: kind, stage, micro-batch, rank at the other end, bytes."""

Batch = tuple[list[Message], int, int, int]
"""Messages that are waited for together, the step they belong to, and the time in which they were issued. Plain tuples,
because several are made for each action.
"""

NO_BATCH: Batch = ([], NONE, 0, 0)


class Received:
    """How many receives were waited for, and the moment at which the last of them ended."""

    def __init__(self) -> None:
        self.receives = 0
        self.last_receive: Any = None


class Messages:
    """Follows each message from the stage method that creates it to the wait that ends it.

    `pending`, `under_way` and `created` are empty if there is nothing to `close`. `expected` has the numbers of the
    batches with a receive. Messages that were created, issued and waited for in the usual way are `pending` instead,
    which the wrappers in C fill and empty; they let this class take over what is there before they leave a call to it.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.works = works_of(recorder)
        self._waits = self.works.values
        self._when_waited = self._waited
        self.pending = self.works.pending
        self._received: Any = Received() if self.pending is None else self.pending
        if self.pending is not None:
            self.pending.take_over = self._take_over
            self.works.when_ended = self._ended
        self._created = IdentityMap()
        self.created = self._created.ids
        self.under_way: dict[int, Batch] = {}
        self.expected: set[int] = set()
        self._numbers = count(1)
        recorder.in_child.append(self._begin_in_child)

    @property
    def receives(self) -> int:
        """How many receives were waited for."""
        return self._received.receives  # type: ignore[no-any-return]

    @property
    def last_receive(self) -> Any:
        """The moment at which the last of them ended."""
        return self._received.last_receive

    def creation(self, kind: int, signature: Signature, microbatch: str) -> Creation:
        """Return what sees the operations that a method of a stage has created for one micro-batch."""
        place = signature.places.get(microbatch, FIRST)
        recorder, created, keep = self.recorder, self._created.values, self._created.keep

        def see(args: tuple[Any, ...], kwargs: dict[str, Any], operations: Any) -> None:
            if not recorder.enabled or not isinstance(operations, (list, tuple)):
                return
            stage = args[0].stage_index
            number = args[place] if len(args) > place else kwargs[microbatch]
            for operation in operations:
                message = (kind, stage, number, operation.peer, operation.tensor.nbytes)
                try:
                    created[id(operation)] = (ref(operation), message)
                except TypeError:  # it has no weak references
                    keep(operation, message)

        return Creation(recorder, kind, place, self.pending, see)

    def issues(self, operations: Parameter) -> Issues:
        """Return what sees the calls of a function that issues operations."""
        known = self._created.values, self.works.classes
        return Issues(self.recorder, operations, self.issued, self.pending, known)

    def issued(self, operations: tuple[Any, ...], start_ns: int, handles: Any) -> None:
        """Note a call that has issued operations and returned their handles.

        Where each has its own handle, this does what `_expect` does, without a call for each message.
        """
        end_ns = now_ns()
        if self.pending:
            self._take_over()
        created, under_way, step = self._created.values, self.under_way, self.recorder.step
        waits, classes, waited = self._waits, self.works.classes, self._when_waited
        if handles.__class__ is not list or len(handles) != len(operations):
            self._issued_together(operations, handles, start_ns, end_ns)
            return
        for operation, handle in zip(operations, handles):  # noqa: B905  # as many, and `strict` takes time
            reference, message = created.pop(id(operation), UNKNOWN)
            if reference is None or reference() is not operation:
                continue  # taken by an inner call
            number = next(self._numbers)
            under_way[number] = ([message], step, start_ns, end_ns)
            if message[0] in _RECEIVES:
                self.expected.add(number)
            try:
                waits[id(handle)] = (ref(handle), (waited, number, None))
            except TypeError:  # it has no weak references
                if handle is not None:
                    self.works.watch(handle, waited, what=number)
            if handle.__class__ not in classes:
                self.works.observe_overrides(handle.__class__)

    def _issued_together(self, operations: Sequence[Any], handles: Any, start_ns: int, end_ns: int) -> None:
        take = self._created.take
        messages = [take(operation) for operation in operations]  # those of inner calls have been taken
        for handle, found in assigned(handles, messages):
            known = [message for message in found if message is not None]
            if known:
                self._expect(handle, (known, self.recorder.step, start_ns, end_ns))

    def used(self, kind: int, stage: int, microbatch: int, begun: Any) -> None:
        """Record the receives that an action uses without a wait: their data has arrived when it begins."""
        if self.pending:
            self._take_over()
        receive = (_RECEIVE_OF_ACTION.get(kind, NONE), stage, microbatch)
        for number in list(self.expected):
            messages, step, start_ns, end_ns = self.under_way.get(number, NO_BATCH)
            arrived = [message for message in messages if message[:3] == receive]
            if arrived:
                messages[:] = [message for message in messages if message[:3] != receive]
            if not any(message[0] in _RECEIVES for message in messages):
                self.expected.discard(number)
            if arrived:
                self.recorder.timer.resolve(
                    partial(self._emit, (arrived, step, start_ns, end_ns), NONE, NONE), begun
                )

    def close(self, *, is_done: bool = True) -> None:
        """Record the sends without a wait. Receives whose data was never used are counted as dropped.

        Those of a step that has failed, which is not `is_done`, may never have ended: nothing of them is recorded.
        """
        if self.pending:
            self._take_over()
        for messages, step, start_ns, end_ns in list(self.under_way.values()):
            sends = [message for message in messages if message[0] not in _RECEIVES]
            self._emit((sends, step, start_ns, end_ns), NONE, NONE)
            if is_done:
                self.recorder.drop(len(messages) - len(sends))
        self._begin_in_child()
        self.works.forget(self)

    def _begin_in_child(self) -> None:
        self.under_way.clear()
        self.expected.clear()
        self._created.clear()
        if self.pending is not None:
            self.pending.clear()

    def _take_over(self) -> None:
        """Continue with the messages that the wrappers in C have noted."""
        if self.pending is None:
            return
        created, issued = self.pending.take()
        for place, reference, message in created:
            self._created.values[place] = (reference, message)
        together: dict[int, tuple[Callable[[], object], Batch]] = {}
        for place, reference, message, *issue in issued:
            together.setdefault(place, (reference, ([], *issue)))[1][0].append(message)
        for place, (reference, batch) in together.items():
            self._waits[place] = (reference, (self._when_waited, self._add(batch), None))

    def _add(self, batch: Batch) -> int:
        """Return the number of a batch that is under way from now on."""
        number = next(self._numbers)
        self.under_way[number] = batch
        if any(message[0] in _RECEIVES for message in batch[0]):
            self.expected.add(number)
        return number

    def _ended(self, message: Message, step: int, *moments: int) -> None:
        """Record a message that a wrapper in C has waited for, unless the wait has failed: its end is then NONE.

        `moments` are the start and the end of its issue, and of the wait.
        """
        start_ns, end_ns, wait_start_ns, wait_end_ns = moments
        number = self._add(([message], step, start_ns, end_ns))
        if wait_end_ns != NONE:
            self._waited(number, wait_start_ns, wait_end_ns)

    def _expect(self, handle: object, batch: Batch) -> None:
        """Record a batch at the end of the wait for `handle`."""
        number = self._add(batch)
        if handle is not None:
            self.works.watch(handle, self._when_waited, what=number)

    def _waited(self, number: int, start: Any, end: Any) -> None:
        """Record a batch at the end of the wait for it.

        Gloo blocks the host. NCCL makes the compute stream wait and returns immediately, so the wait is timed on that
        stream: from the end of its preceding work until it continues.
        """
        batch = self.under_way.pop(number, None)
        if batch is None:
            return
        messages, step, start_ns, end_ns = batch
        recorder = self.recorder
        waiting, plain = recorder.waiting, recorder.plain if recorder.device_records is None else None
        if plain is None or recorder.waiting_thread != get_ident() or len(waiting) >= recorder.most_waiting:
            plain = None
            recorder.timer.resolve(partial(self._emit, batch), start, end)
        for message in messages:
            ended_ns = end_ns
            if message[0] in _RECEIVES:
                ended_ns = end
                self._received.receives += 1
                self._received.last_receive = end
                self.expected.discard(number)
            if plain is not None:  # what `_emit` does, without a call
                waiting.append((start_ns, ended_ns, start, end, step, plain, message))

    def describe_wait(self, number: int) -> Iterator[dict[str, object]]:
        """Yield the messages that a wait in progress is for, see record/process_state.py."""
        from stagescope.record.process_state import message_facts  # only needed when nothing else happens

        messages, _, start_ns, _ = self.under_way.get(number, NO_BATCH)
        for kind, stage, microbatch, peer, _ in messages:
            yield message_facts(kind, start_ns, stage=stage, microbatch=microbatch, peer=peer)

    def _emit(
        self, batch: Batch, wait_start_ns: int, wait_end_ns: int, arrival_ns: int | None = None
    ) -> None:
        messages, step, start_ns, end_ns = batch
        received_ns = wait_end_ns if arrival_ns is None else arrival_ns
        for kind, stage, microbatch, peer, size_bytes in messages:
            ended_ns = received_ns if kind in _RECEIVES else end_ns
            self.recorder.emit(kind, start_ns, ended_ns, stage, microbatch, NONE, peer, size_bytes,
                               wait_start_ns, wait_end_ns, 0, NONE, step)  # fmt: skip


def assigned(
    handles: Any, messages: Sequence[Message | None]
) -> Sequence[tuple[object, Sequence[Message | None]]]:
    """Return the handles with the messages that each is certain to be for; None is the handle of all others.

    `messages` has an entry for each operation. Operations of one call belong to one group; torch returns no handle for
    any of them if this rank is not in the group, and never for some of them only.
    """
    works = handles if isinstance(handles, (list, tuple)) else [handles]
    if len(works) == len(messages):
        return [(work, (message,)) for work, message in zip(works, messages, strict=True)]
    is_coalesced = isinstance(handles, (list, tuple)) and len(works) == 1
    return [(works[0] if is_coalesced else None, messages)]
