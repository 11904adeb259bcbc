"""Sends and receives of Paddle fleet's pipeline.

Paddle 3.3.1, paddle/distributed/fleet/meta_parallel/pp_utils/p2p_communication.py: all transfers go through the
module global ``_p2p_helper``. On a device it only queues work on the calculation stream; on a CPU it blocks.
"""

from __future__ import annotations

import functools
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
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.frameworks.runs import Runs
    from stagescope.record.patching import Patches

    Function = Callable[..., Any]


class PaddleTransfers(Transfers):
    """The transfers of one process, and its neighbors."""

    def __init__(self, runs: Runs) -> None:
        super().__init__(runs.recorder)
        self._runs = runs
        self._next_rank = self._previous_rank = NONE
        self._whole = True
        self._entered_ns: int | None = None

    def install(self, p2p: ModuleType, patches: Patches) -> None:
        """Wrap the functions that move tensors."""
        helper = getattr(p2p, "P2pHelper", None)
        for name in list(vars(helper)) if helper else ():
            if name.startswith(("send_", "recv_")):
                patches.wrap(helper, name, self._enter)
        patches.wrap(p2p, "_p2p_helper", self._move)

    def learn(self, pipeline: Any, device: str) -> None:
        """Read the neighbors of this rank, and whether a transfer blocks and is complete."""
        groups = pipeline._hcg  # noqa: SLF001  # no public name
        self.blocks = device.startswith("cpu")
        self._whole = (
            groups.get_model_parallel_world_size() == 1
        )  # otherwise each rank may send only its part
        self._next_rank = groups._get_p2p_next_rank()  # noqa: SLF001  # no public name
        self._previous_rank = groups._get_p2p_prev_rank()  # noqa: SLF001  # same

    def _enter(self, original: Function) -> Function:
        """Return the wrapper of a method of P2pHelper, which may wait for a message's shape before it moves data."""

        @functools.wraps(original)
        def transfer(*args: Any, **kwargs: Any) -> Any:
            self._entered_ns = now_ns()
            try:
                return original(*args, **kwargs)
            finally:
                self._entered_ns = None

        return transfer

    def _move(self, original: Function) -> Function:
        def _p2p_helper(
            tensor_send_next: Any,
            tensor_send_prev: Any,
            recv_prev: Any,
            recv_next: Any,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            start_ns = self._entered_ns or now_ns()
            moved = original(tensor_send_next, tensor_send_prev, recv_prev, recv_next, *args, **kwargs)
            if self._runs.inside and self.recorder.enabled:
                interval = (start_ns, now_ns())
                self._note(SEND_FORWARD, tensor_send_next, self._next_rank, interval)
                self._note(SEND_BACKWARD, tensor_send_prev, self._previous_rank, interval)
                self._note(RECV_FORWARD, moved[0] if recv_prev else None, self._previous_rank, interval)
                self._note(RECV_BACKWARD, moved[1] if recv_next else None, self._next_rank, interval)
            return moved

        return _p2p_helper

    def _note(self, kind: int, tensors: Any, peer: int, interval: tuple[int, int]) -> None:
        if first_of(tensors) is None:
            return
        message = Message(kind, peer, self._size_of(tensors), *interval)
        if kind in (SEND_FORWARD, SEND_BACKWARD):
            self.sent(tensors, message)
        else:
            self.received(tensors, message)

    def _size_of(self, tensors: Any) -> int:
        """Return the size of the tensors in bytes, `NONE` if this rank transfers only a part of them."""
        if not self._whole:
            return NONE
        try:
            return sum(int(tensor.size) * int(tensor.element_size()) for tensor in all_of(tensors))
        except Exception:  # noqa: BLE001  # another kind of container or tensor; the transfer is recorded in any case
            return NONE
