"""Sends and receives of Paddle's DualPipeV, which are queued one by one and moved in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.paddle_transfers import size_of
from stagescope.record.frameworks.transfers import RECV_BACKWARD, RECV_FORWARD, first_of

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from stagescope.record.calls import Call
    from stagescope.record.frameworks.runs import Place
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, None]


class Queued(NamedTuple):
    """A transfer that has not been moved yet; `tensor` identifies it."""

    kind: int
    place: Place
    peer: int
    size_bytes: int
    tensor: Any


class DualPipeTransfers:
    """The queued transfers of one process."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._blocks = False
        self.forget()

    def learn(self, device: str) -> None:
        """Read whether moving a batch blocks the host until its messages have arrived."""
        self._blocks = device.startswith("cpu")

    def forget(self) -> None:
        """Discard what is queued, after a step that failed."""
        self._queued: list[Queued] = []
        self._moving: list[Queued] = []
        self._moving_since_ns = NONE
        self._in_commit = False

    def queued(self, kind: int, place: Place, peer: int, tensors: Any) -> None:
        """Note that a transfer was queued."""
        if self.recorder.enabled:
            self._queued.append(Queued(kind, place, peer, size_of(tensors), first_of(tensors)))

    def commit(self, call: Call) -> Observation:
        """Observe the call that moves all queued transfers and waits for them."""
        del call
        if not self._queued:
            return
        start_ns = now_ns()
        self._in_commit = True
        try:
            yield
        finally:
            self._in_commit = False
        self._finish()
        self._emit(self._queued, start_ns, now_ns())  # those that were not seen in a batch
        self._queued = []

    def batch(self, call: Call) -> Observation:
        """Observe the start of a batch inside that call. The batch before has been waited for."""
        if not self._in_commit:
            return
        self._finish()
        moved = {id(operation.tensor) for operation in call.get("p2p_op_list")}
        self._moving = [one for one in self._queued if id(one.tensor) in moved]
        self._queued = [one for one in self._queued if id(one.tensor) not in moved]
        self._moving_since_ns = now_ns()
        yield

    def _finish(self) -> None:
        moving, self._moving = self._moving, []
        self._emit(moving, self._moving_since_ns, now_ns())

    def _emit(self, transfers: Sequence[Queued], start_ns: int, end_ns: int) -> None:
        for kind, place, peer, size_bytes, _ in transfers:
            waited = self._blocks and kind in (RECV_FORWARD, RECV_BACKWARD)
            wait = (start_ns, end_ns) if waited else (NONE, NONE)
            self.recorder.emit(kind, start_ns, end_ns, *place, peer, size_bytes, *wait)
