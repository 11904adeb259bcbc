"""Sends and receives of MindSpeed's DualPipeV, whose direction depends on the chunk: the second goes up the ranks.

MindSpeed 0d202f97, dualpipev_schedules.py: six functions, each of which calls ``_communicate`` at most once. Despite
its name, ``send_forward_recv_slave_forward`` also moves gradients, so the sent tensor determines the kind of the
receive.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Signature, never_raises
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
from stagescope.record.patching import MARK

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

MEGATRON_P2P = "megatron.core.pipeline_parallel.p2p_communication"
FUNCTIONS = (
    "send_forward",
    "recv_forward",
    "send_backward",
    "recv_backward",
    "send_forward_recv_forward",
    "send_forward_recv_slave_forward",
)


class MindSpeedTransfers(Transfers):
    """The transfers of one process, and its neighbors."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._neighbors = {"next": NONE, "prev": NONE}
        self._gradients = IdentityMap()
        self._is_backward = False

    def install(self, schedules: ModuleType, patches: Patches) -> None:
        """Wrap the functions that move tensors, and ``_communicate``."""
        for name in FUNCTIONS:
            patches.wrap(schedules, name, self._enter)
        patches.wrap(schedules, "_communicate", self._move)

    def learn(self, state: Any) -> None:
        """Read the neighbors of this rank, and remove Megatron's hooks.

        Megatron's hooks are in functions that ``_communicate`` calls: each message would be recorded twice, and with
        the wrong direction for the second chunk.
        """
        megatron = sys.modules.get(MEGATRON_P2P)
        for name in ("_batched_p2p_ops", "_p2p_ops") if megatron else ():
            wrapped = getattr(megatron, name, None)
            if hasattr(wrapped, MARK):
                setattr(megatron, name, getattr(wrapped, MARK))
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

    def _enter(self, original: Function) -> Function:
        """Return the wrapper of a function that moves tensors: its name determines the kind of a receive."""
        is_backward = original.__name__.endswith("_backward")

        def transfer(*args: Any, **kwargs: Any) -> Any:
            self._is_backward = is_backward
            return original(*args, **kwargs)

        return transfer

    def _move(self, original: Function) -> Function:
        signature = Signature(original)

        def _communicate(*args: Any, **kwargs: Any) -> Any:
            start_ns = now_ns()
            moved = original(*args, **kwargs)
            if self.recorder.enabled:
                self._note(signature.call(args, kwargs), moved, (start_ns, now_ns()))
            return moved

        return _communicate

    @never_raises()
    def _note(self, call: Any, moved: Any, interval: tuple[int, int]) -> None:
        is_backward = self._is_backward
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
