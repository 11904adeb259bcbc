"""The sends and receives of DeepSpeed's pipeline engine.

A transfer is one instruction, however many tensors it moves. PipelineEngine moves them inside the instruction, with
``p2p.send`` and ``p2p.recv``, which block the host if the backend does (gloo). DualPipeVEngine only queues them; the
instruction CommitP2P issues all queued ones as one batch and waits for each handle (runtime/pipe/dualpipev.py,
``_exec_commit_p2p``). The shapes that are sent ahead of the first tensors are not counted.

Wrappers in C take the usual calls of PipelineEngine; see native/moves.c. `DeepSpeedTransfers.moves` is what they know.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from stagescope.record import compiled
from stagescope.record.calls import NOWHERE, never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.deepspeed_actions import LEAST
from stagescope.record.frameworks.works import works_of
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from stagescope.record.calls import Signature
    from stagescope.record.frameworks.deepspeed_actions import Actions
    from stagescope.record.recorder import Recorder

    Arguments = tuple[Any, ...]
    Keywords = dict[str, Any]
    Numbers = tuple[int, int, int]  # those of a Place
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
    itself. The moments are the timer's, but nanoseconds of the host for sends that block the host. `outer` is the
    transfer inside of which this one began, which does not happen in DeepSpeed.
    """

    __slots__ = (
        "kind",
        "operations",
        "outer",
        "peer",
        "place",
        "size_bytes",
        "start_ns",
        "step",
        "wait_end",
        "wait_start",
    )

    def __init__(self, kind: int, place: Numbers, step: int, outer: Transfer | None) -> None:
        self.kind = kind
        self.place = place
        self.step = step
        self.outer = outer
        self.peer = NONE
        self.size_bytes = 0
        self.operations = 0
        self.wait_start: Any = None
        self.wait_end: Any = None
        self.start_ns = now_ns()


class DeepSpeedTransfers:
    """The transfer in progress, and those that are queued or issued but not complete.

    `ranks` has the ranks of stages that were asked for in this batch.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.rank_of: Callable[[Any], int] | None = None
        self.current: Transfer | None = None
        self.ranks: dict[int, int] = {}
        self._queued: list[Transfer] = []
        self._issued: list[Transfer] = []
        self.moves = compiled.moves(recorder)
        if self.moves is not None:
            self.moves.is_known = True
            self.moves.take_over = self._take_over

    def forget(self) -> None:
        """Discard what a failed batch has left."""
        self.current = None
        self._queued, self._issued = [], []
        self.ranks.clear()
        if self.moves is not None:
            self.moves.clear()

    def ended(self, transfer: Transfer) -> None:
        """End an instruction: record its transfer unless it is only queued."""
        self.current = transfer.outer
        if transfer.operations:
            self._queued.append(transfer)
        else:
            self._end(transfer)

    def observe_shapes(self) -> Observation:
        """Observe a method that sends or receives shapes, which are not part of the message."""
        transfer, self.current = self.current, None
        moves = self.moves
        is_paused = moves is not None and moves.is_paused
        if moves is not None:
            moves.is_paused = True
        try:
            return (yield)
        finally:
            self.current = transfer
            if moves is not None:
                moves.is_paused = is_paused

    def observe_queue(self, tensors: object, stage: object) -> Observation:
        """Observe the queuing of the tensors of an instruction."""
        result = yield
        transfer = self.current
        if transfer is not None and isinstance(tensors, (list, tuple)):
            transfer.operations += len(tensors)
            self.add(transfer, tensors, stage)
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

    def _take_over(
        self, kind: int, place: Numbers, step: int, facts: Numbers, wait: tuple[int, int]
    ) -> Transfer:
        """Follow a transfer in progress that a wrapper in C has followed: its start, size and peer are known."""
        transfer = self.current = Transfer(kind, place, step, self.current)
        transfer.start_ns, transfer.size_bytes, transfer.peer = facts
        transfer.wait_start, transfer.wait_end = (None if moment == NONE else moment for moment in wait)
        return transfer

    def _end(self, transfer: Transfer) -> None:
        """Record a transfer.

        With NCCL a wait blocks the stream instead of the host, so the timer determines its end.
        """
        timer, is_timed = self.recorder.timer, transfer.operations or transfer.kind in RECEIVES
        start, end = transfer.wait_start, transfer.wait_end
        if end is None:
            self._emit(transfer, now_ns(), NONE, NONE)
        elif not is_timed:
            self._emit(transfer, now_ns(), start, end)
        elif timer.device is None:
            self._emit(transfer, end, start, end)
        else:
            timer.resolve(
                lambda start_ns, wait_end_ns: self._emit(transfer, wait_end_ns, start_ns, wait_end_ns),
                start,
                end,
            )

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
    def add(self, transfer: Transfer, tensors: Sequence[Any], stage: Any) -> None:
        """Add tensors that are moved to or from a stage."""
        size_bytes = 0
        for tensor in tensors:
            size_bytes += tensor.numel() * tensor.element_size()
        transfer.size_bytes += size_bytes
        if self.rank_of is not None:
            rank = self.ranks.get(stage)
            transfer.peer = self.find_rank(stage) if rank is None else rank

    def find_rank(self, stage: Any) -> int:
        """Ask the engine's grid for the rank of a stage, and keep it in `ranks` for the rest of the batch."""
        rank = NONE if self.rank_of is None else self.rank_of(stage)
        if type(stage) is int and type(rank) is int:
            self.ranks[stage] = rank
        return rank


class Instruction:
    """Watches an instruction that sends or receives."""

    def __init__(
        self, actions: Actions, transfers: DeepSpeedTransfers, name: str, signature: Signature
    ) -> None:
        self.recorder = transfers.recorder
        self._actions = actions
        self._transfers = transfers
        self._kind = TRANSFERS[name]
        self._numbers = actions.numbers(name)
        self._phase = signature.parameter("phase")
        if transfers.moves is not None and self._phase.place == NOWHERE:
            refs = (transfers.moves, self._numbers)
            self.usual = ("transfer", refs, (self._kind, int(self._kind in RECEIVES)))

    def begin(self, args: Arguments, kwargs: Keywords) -> Transfer | None:
        """Return the transfer that begins."""
        actions, recorder = self._actions, self.recorder
        if not actions.is_known:
            return None
        phase = int(self._phase.of(args, kwargs, 0)) if len(args) + len(kwargs) > LEAST else 0
        number = self._numbers.get(phase, 0)
        self._numbers[phase] = number + 1
        if not recorder.enabled:
            return None
        transfers, place = self._transfers, actions.place_of(args[0], phase, number)
        transfers.current = transfer = Transfer(self._kind, place, recorder.step, transfers.current)
        return transfer

    def end(self, state: Transfer, result: Any) -> None:
        """Record it, unless it is only queued."""
        del result
        self._transfers.ended(state)

    def abandon(self, state: Transfer | None) -> None:
        """Forget a transfer that failed."""
        self._transfers.current = None if state is None else state.outer


class Move:
    """Watches ``p2p.send`` or ``p2p.recv``, which move one tensor to or from the stage that is their parameter."""

    def __init__(self, transfers: DeepSpeedTransfers, signature: Signature) -> None:
        self.recorder = transfers.recorder
        self._transfers = transfers
        self._tensor = signature.parameter("tensor")
        self._stage = signature.parameter("dest_stage" if "dest_stage" in signature.places else "src_stage")
        self._is_usual = (self._tensor.place, self._stage.place) == (0, 1)
        if transfers.moves is not None and self._is_usual:
            self.usual = ("move", (transfers.moves, transfers.ranks), ())

    def begin(self, args: Arguments, kwargs: Keywords) -> tuple[Transfer, Any, Any] | None:
        """Return the transfer in progress, the tensor and the stage."""
        transfer = self._transfers.current
        if transfer is None:
            return None
        if transfer.wait_start is None:
            transfer.wait_start = self.recorder.timer.begin() if transfer.kind in RECEIVES else now_ns()
        tensor = args[0] if args and self._is_usual else self._tensor.of(args, kwargs)
        return transfer, tensor, args[1] if len(args) > 1 and self._is_usual else self._stage.of(args, kwargs)

    def end(self, state: tuple[Transfer, Any, Any], result: Any) -> None:
        """Add the tensor."""
        del result
        transfer, tensor, stage = state
        transfer.wait_end = self.recorder.timer.begin() if transfer.kind in RECEIVES else now_ns()
        self._transfers.add(transfer, (tensor,), stage)

    def abandon(self, state: Any) -> None:
        """Leave a call that failed."""

    def find_rank(self, stage: Any) -> None:
        """Find the rank of a stage for the wrapper in C, if that is possible."""
        self._transfers.find_rank(stage)


def _note_wait(transfers: Sequence[Transfer], start: Any, end: Any) -> None:
    for transfer in transfers:
        if transfer.wait_start is None:
            transfer.wait_start = start
        transfer.wait_end = end
