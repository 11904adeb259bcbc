"""Sends and receives of Paddle fleet's pipeline.

paddle/distributed/fleet/meta_parallel/pp_utils/p2p_communication.py of Paddle 2.6.2 to 3.3.1: all transfers go through
the module global ``_p2p_helper``. On a device it only queues work on the calculation stream; on a CPU it blocks. With
``overlap_p2p_comm`` it returns the handles of what ``_p2p_ops`` has issued, for which the schedule waits later.
four_directions_p2p_communication.py next to it has the same functions and is used instead in Paddle 2.6 for XPUs or
with PADDLE_USE_FOUR_DIRECTIONS_P2P.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.transfers import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Message,
    Transfers,
    Wait,
    all_of,
    first_of,
)
from stagescope.record.frameworks.works import works_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.calls import Call
    from stagescope.record.frameworks.runs import Runs

    Observation = Generator[None, Any, None]


RECEIVES = (RECV_FORWARD, RECV_BACKWARD)
ORDER_BY_PARITY = (
    (SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD),
    (RECV_FORWARD, SEND_FORWARD, RECV_BACKWARD, SEND_BACKWARD),
)
"""The order in which ``_p2p_ops`` of Paddle 3.0 to 3.3.1 issues, on even and on odd stages of a pipeline."""


class PaddleTransfers(Transfers):
    """The transfers of one process, and its neighbors."""

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs.recorder)
        self._runs = runs
        self._next_rank = self._previous_rank = NONE
        self._whole = True
        self._entered_ns: int | None = None
        self._works = works_of(runs.recorder)
        self._parity = 0

    def learn(self, pipeline: Any, device: str) -> None:
        """Read the neighbors of this rank, and whether a transfer blocks and is complete."""
        groups = pipeline._hcg  # noqa: SLF001  # no public name
        self.blocks = device.startswith("cpu")
        self._whole = (
            groups.get_model_parallel_world_size() == 1
        )  # otherwise each rank may send only its part
        self._parity = pipeline.stage_id % 2
        self._next_rank = groups._get_p2p_next_rank()  # noqa: SLF001  # no public name
        self._previous_rank = groups._get_p2p_prev_rank()  # noqa: SLF001  # same

    def enter(self, call: Call) -> Observation:
        """Observe a method of P2pHelper, which may wait for a message's shape before it moves data."""
        del call
        self._entered_ns = now_ns()
        try:
            yield
        finally:
            self._entered_ns = None

    def move(self, call: Call) -> Observation:
        """Observe the function that moves up to four tensors and returns the received ones."""
        start_ns = self._entered_ns or now_ns()
        moved = yield
        if not self._runs.inside or not self.recorder.enabled:
            return
        sent_next, sent_back = call.get("tensor_send_next"), call.get("tensor_send_prev")
        received = moved[0] if call.get("recv_prev") else None
        received_back = moved[1] if call.get("recv_next") else None
        moved_tensors = {
            SEND_FORWARD: (sent_next, self._next_rank),
            SEND_BACKWARD: (sent_back, self._previous_rank),
            RECV_FORWARD: (received, self._previous_rank),
            RECV_BACKWARD: (received_back, self._next_rank),
        }
        waits: dict[int, Wait] = {}
        is_complete = call.get("wait_on_reqs", default=True) is not False
        if not is_complete:
            waits = self._watch(moved[2], {kind: tensors for kind, (tensors, _) in moved_tensors.items()})
        for kind, (tensors, peer) in moved_tensors.items():
            self._note(kind, tensors, peer, (start_ns, now_ns(), is_complete, waits.get(kind)))

    def _watch(self, handles: Any, tensors: dict[int, Any]) -> dict[int, Wait]:
        """Return the waits for the receives among the `handles`, which are in the order in which they were issued.

        With another number of handles, as where several are joined, it is unknown which belong to which message.
        """
        counts = [(kind, len(all_of(tensors[kind]))) for kind in ORDER_BY_PARITY[self._parity]]
        issued = [kind for kind, count in counts for _ in range(count)]
        if not isinstance(handles, (list, tuple)) or len(handles) != len(issued):
            return {}
        waits = {kind: Wait() for kind in issued if kind in RECEIVES}
        for kind, handle in zip(issued, handles, strict=True):
            if kind in waits:
                self._works.watch(handle, waits[kind].note)
        return waits

    def _note(self, kind: int, tensors: Any, peer: int, timing: tuple[int, int, bool, Wait | None]) -> None:
        if first_of(tensors) is None:
            return
        message = Message(kind, peer, self._size_of(tensors), *timing)
        if kind in (SEND_FORWARD, SEND_BACKWARD):
            self.sent(tensors, message)
        else:
            self.received(tensors, message)

    def _size_of(self, tensors: Any) -> int:
        """Return the size of the tensors in bytes, `NONE` if this rank transfers only a part of them."""
        return size_of(tensors) if self._whole else NONE


def size_of(tensors: Any) -> int:
    """Return the size of Paddle tensors in bytes, `NONE` if unknown."""
    try:
        return sum(int(tensor.size) * int(tensor.element_size()) for tensor in all_of(tensors))
    except Exception:  # noqa: BLE001  # another kind of container or tensor; the transfer is recorded in any case
        return NONE
