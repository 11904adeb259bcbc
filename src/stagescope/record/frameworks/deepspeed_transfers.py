"""The sends and receives of DeepSpeed's pipeline engine.

A transfer is one instruction, however many tensors it moves. PipelineEngine moves them inside the instruction, with
``p2p.send`` and ``p2p.recv``, which block the host if the backend does (gloo). DualPipeVEngine only queues them; the
instruction CommitP2P issues all queued ones as one batch and waits for each handle (runtime/pipe/dualpipev.py,
``_exec_commit_p2p``). The shapes that are sent ahead of the first tensors are not counted.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.works import works_of
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from stagescope.record.frameworks.runs import Place
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

TRANSFERS = {
    "SendActivation": BY_NAME["send_forward"].code,
    "RecvActivation": BY_NAME["recv_forward"].code,
    "SendGrad": BY_NAME["send_backward"].code,
    "RecvGrad": BY_NAME["recv_backward"].code,
}
RECEIVES = (TRANSFERS["RecvActivation"], TRANSFERS["RecvGrad"])


class Transfer:
    """The data moved by one send or receive instruction, and the moments at which its wait began and ended.

    `operations` is the number of its tensors in the batch that is issued later, 0 if the instruction moves them
    itself. The moments are the timer's, but nanoseconds of the host for sends that block the host.
    """

    __slots__ = (
        "kind",
        "operations",
        "peer",
        "place",
        "size_bytes",
        "start_ns",
        "step",
        "wait_end",
        "wait_start",
    )

    def __init__(self, kind: int, place: Place, step: int) -> None:
        self.kind = kind
        self.place = place
        self.step = step
        self.peer = NONE
        self.size_bytes = 0
        self.operations = 0
        self.wait_start: Any = None
        self.wait_end: Any = None
        self.start_ns = now_ns()


class DeepSpeedTransfers:
    """The transfer in progress, and those that are queued or issued but not complete."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.rank_of: Callable[[Any], int] | None = None
        self._current: Transfer | None = None
        self._queued: list[Transfer] = []
        self._issued: list[Transfer] = []

    def forget(self) -> None:
        """Discard what a failed batch has left."""
        self._current = None
        self._queued, self._issued = [], []

    def observe_instruction(self, kind: int, place: Place) -> Observation:
        """Observe an instruction that sends or receives."""
        if not self.recorder.enabled:
            return (yield)
        transfer = self._current = Transfer(kind, place, self.recorder.step)
        try:
            result = yield
        finally:
            self._current = None
        if transfer.operations:
            self._queued.append(transfer)
        else:
            self._end(transfer)
        return result

    def observe_shapes(self) -> Observation:
        """Observe a method that sends or receives shapes, which are not part of the message."""
        transfer, self._current = self._current, None
        try:
            return (yield)
        finally:
            self._current = transfer

    def observe_move(self, tensor: object, stage: object) -> Observation:
        """Observe ``p2p.send`` or ``p2p.recv``."""
        transfer = self._current
        if transfer is None:
            return (yield)
        read = self.recorder.timer.begin if transfer.kind in RECEIVES else now_ns
        if transfer.wait_start is None:
            transfer.wait_start = read()
        result = yield
        transfer.wait_end = read()
        self._add(transfer, (tensor,), stage)
        return result

    def observe_queue(self, tensors: object, stage: object) -> Observation:
        """Observe the queuing of the tensors of an instruction."""
        result = yield
        transfer = self._current
        if transfer is not None and isinstance(tensors, (list, tuple)):
            transfer.operations += len(tensors)
            self._add(transfer, tensors, stage)
        return result

    def observe_commit(self) -> Observation:
        """Observe the instruction that issues the queued transfers and waits for them."""
        self._issued, self._queued = self._queued, []
        start_ns = now_ns()
        for transfer in self._issued:
            transfer.start_ns = start_ns
        try:
            result = yield
            for transfer in self._issued:
                self._end(transfer)
        finally:
            self._issued = []
        return result

    def observe_launch(self) -> Observation:
        """Observe the function that issues a batch and returns its handles."""
        transfers = self._issued
        works = yield
        if transfers and isinstance(works, (list, tuple)):
            self._watch(transfers, works)

    def _watch(self, transfers: Sequence[Transfer], works: Sequence[object]) -> None:
        """Watch the handles: one for each operation with gloo, one for the whole batch with NCCL."""
        of_operations = [transfer for transfer in transfers for _ in range(transfer.operations)]
        is_one_each = len(works) == len(of_operations)
        for index, work in enumerate(works):
            waiting = [of_operations[index]] if is_one_each else transfers
            works_of(self.recorder).watch(work, functools.partial(_note_wait, waiting))

    def _end(self, transfer: Transfer) -> None:
        """Record a transfer.

        With NCCL a wait blocks the stream instead of the host, so the timer determines its end.
        """
        end_ns = now_ns()
        if transfer.wait_end is None:
            self._emit(transfer, end_ns, NONE, NONE)
        elif transfer.operations or transfer.kind in RECEIVES:
            self.recorder.timer.resolve(
                lambda start_ns, wait_end_ns: self._emit(transfer, wait_end_ns, start_ns, wait_end_ns),
                transfer.wait_start,
                transfer.wait_end,
            )
        else:
            self._emit(transfer, end_ns, transfer.wait_start, transfer.wait_end)

    def _emit(self, transfer: Transfer, end_ns: int, wait_start_ns: int, wait_end_ns: int) -> None:
        self.recorder.emit(
            transfer.kind,
            transfer.start_ns,
            end_ns,
            *transfer.place,
            transfer.peer,
            transfer.size_bytes,
            wait_start_ns,
            wait_end_ns,
            step=transfer.step,
        )

    @never_raises()
    def _add(self, transfer: Transfer, tensors: Sequence[Any], stage: object) -> None:
        transfer.size_bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if self.rank_of is not None:
            transfer.peer = self.rank_of(stage)


def _note_wait(transfers: Sequence[Transfer], start: Any, end: Any) -> None:
    for transfer in transfers:
        if transfer.wait_start is None:
            transfer.wait_start = start
        transfer.wait_end = end
