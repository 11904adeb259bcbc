"""Sends and receives of MindSpeed's DualPipeV, whose direction depends on the chunk: the second goes up the ranks.

MindSpeed 0d202f97, dualpipev_schedules.py: six functions, each of which calls ``_communicate`` at most once. Despite
its name, ``send_forward_recv_slave_forward`` also moves gradients, so the sent tensor determines the kind of the
receive. A call of ``_communicate`` from anywhere else is not recorded, because its kind is unknown.

Megatron's hooks are in functions that ``_communicate`` calls. They record nothing in this schedule, see
megatron_messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import IdentityMap, Place
from stagescope.record.frameworks.transfers import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Message,
    Transfers,
    bytes_in,
    first_of,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.calls import Call
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, object]


class MindSpeedTransfers(Transfers):
    """The transfers of one process, and its neighbors."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._neighbors = {"next": NONE, "prev": NONE}
        self._gradients = IdentityMap()
        self._is_backward: bool | None = None  # None outside of a function that moves tensors

    def learn(self, state: Any) -> None:
        """Read the neighbors of this rank."""
        self._neighbors = {
            "next": state.get_pipeline_model_parallel_next_rank(),
            "prev": state.get_pipeline_model_parallel_prev_rank(),
        }

    def made_backward(self, tensor: Any, place: Place) -> None:
        """Remember a gradient that may be sent later."""
        self.made(tensor, place)
        if self.recorder.enabled:
            self._gradients.keep(first_of(tensor), True)

    def close(self) -> None:
        """Record the receives whose data no pass used, and discard everything."""
        super().close()
        self._gradients.clear()

    def enter(self, call: Call) -> Observation:
        """Observe a function that moves tensors: its name determines the kind of a receive."""
        self._is_backward = call.name.endswith("_backward")
        try:
            return (yield)
        finally:
            self._is_backward = None

    def move(self, call: Call) -> Observation:
        """Observe ``_communicate``."""
        is_backward = self._is_backward
        if is_backward is None or not self.recorder.enabled:
            return (yield)
        start_ns = now_ns()
        moved = yield
        self._note(call, moved, is_backward, (start_ns, now_ns()))
        return moved

    @never_raises()
    def _note(self, call: Call, moved: Any, is_backward: bool, interval: tuple[int, int]) -> None:  # noqa: FBT001
        for side in ("next", "prev"):
            tensor = call.get(f"tensor_send_{side}")
            if tensor is not None:
                is_backward = is_backward or self._gradients.take(tensor, False)
                kind = SEND_BACKWARD if is_backward else SEND_FORWARD
                self.sent(tensor, Message(kind, self._neighbors[side], bytes_in(tensor), *interval))
        for side, tensor in (("prev", moved[0]), ("next", moved[1])):
            if tensor is not None:
                kind = RECV_BACKWARD if is_backward else RECV_FORWARD
                self.received(tensor, Message(kind, self._neighbors[side], bytes_in(tensor), *interval))
