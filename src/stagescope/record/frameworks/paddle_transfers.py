"""Sends and receives of Paddle fleet's pipeline.

paddle/distributed/fleet/meta_parallel/pp_utils/p2p_communication.py of Paddle 2.6.2 to 3.3.1: all transfers go through
the module global ``_p2p_helper``. On a device it only queues work on the calculation stream; on a CPU it blocks.
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
    all_of,
    first_of,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.calls import Call
    from stagescope.record.frameworks.runs import Runs

    Observation = Generator[None, Any, None]


class PaddleTransfers(Transfers):
    """The transfers of one process, and its neighbors."""

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs.recorder)
        self._runs = runs
        self._next_rank = self._previous_rank = NONE
        self._whole = True
        self._entered_ns: int | None = None

    def learn(self, pipeline: Any, device: str) -> None:
        """Read the neighbors of this rank, and whether a transfer blocks and is complete."""
        groups = pipeline._hcg  # noqa: SLF001  # no public name
        self.blocks = device.startswith("cpu")
        self._whole = (
            groups.get_model_parallel_world_size() == 1
        )  # otherwise each rank may send only its part
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
        # With `wait_on_reqs` False (`overlap_p2p_comm`, from Paddle 3.0) somebody else waits for the handles.
        timing = (start_ns, now_ns(), call.get("wait_on_reqs", default=True) is not False)
        self._note(SEND_FORWARD, sent_next, self._next_rank, timing)
        self._note(SEND_BACKWARD, sent_back, self._previous_rank, timing)
        self._note(RECV_FORWARD, received, self._previous_rank, timing)
        self._note(RECV_BACKWARD, received_back, self._next_rank, timing)

    def _note(self, kind: int, tensors: Any, peer: int, timing: tuple[int, int, bool]) -> None:
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
