"""Instruments ColossalAI's pipeline schedules: 1F1B, interleaved and ZBV.

Wrapped in ColossalAI 4f9953be: ``forward_step``, ``backward_step``, ``backward_b_step`` and ``backward_w_step`` of
the schedules in colossalai/pipeline/schedule/ and, as the run, ``forward_backward_step``; and the methods of
colossalai/pipeline/p2p.py that send and receive. The forwards of a chunk run in micro-batch order; a backward is
identified by the output that its forward returned. Functions that a version lacks are skipped and listed in the
header.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import Call, Signature, never_raises
from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.runs import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    UNKNOWN,
    Place,
    Runs,
)
from stagescope.record.frameworks.transfers import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Message,
    Transfers,
    bytes_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Function = Callable[..., Any]

SCHEDULES = {
    "OneForwardOneBackwardSchedule": ("1f1b", ("backward_step",)),
    "InterleavedSchedule": ("interleaved", ("backward_step",)),
    "ZeroBubbleVPipeScheduler": ("zb-v", ("backward_b_step", "backward_w_step")),
}
"""ColossalAI's classes, the usual names of their orders, and the backward methods of each."""
KINDS = {"backward_step": BACKWARD, "backward_b_step": BACKWARD_INPUT, "backward_w_step": BACKWARD_WEIGHT}
P2P = "colossalai.pipeline.p2p"
PARTS = {
    "send_forward": (SEND_FORWARD, "next_rank"),
    "recv_forward": (RECV_FORWARD, "prev_rank"),
    "send_backward": (SEND_BACKWARD, "prev_rank"),
    "recv_backward": (RECV_BACKWARD, "next_rank"),
}
"""The parts of a transfer's name: their kind of span, and the argument that contains the peer."""


def instrument(schedules: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Wrap `schedules`, the imported package colossalai.pipeline.schedule, and the transfers that it uses."""
    Instrumentation(recorder, patches).install(schedules)


class Instrumentation:
    """The wrappers and their shared state: the run, the outputs of its forwards and the messages in progress."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder)
        self.transfers = Transfers(recorder)
        self.optimizers = optimizer_steps(recorder)
        self._missing: list[str] = []
        self._described: object = None

    def install(self, schedules: ModuleType) -> None:
        """Replace class attributes; `patches` can restore them."""
        for name, (_, backwards) in SCHEDULES.items():
            schedule = getattr(schedules, name, None)
            if schedule is None:
                self._missing.append(name)
                continue
            self._wrap(schedule, "forward_backward_step", self._run)
            self._wrap(schedule, "forward_step", self._forward)
            for backward in backwards:
                self._wrap(schedule, backward, self._backward)
        communication = getattr(sys.modules.get(P2P), "PipelineP2PCommunication", None)
        for name in list(vars(communication)) if communication else ():
            if name.startswith(("send_", "recv_")):
                self.patches.wrap(communication, name, self._transfer)
        if communication is None:
            self._missing.append("PipelineP2PCommunication")
        self.optimizers.watch_torch(self.patches)

    def _wrap(self, schedule: type, name: str, make: Callable[[Function], Function]) -> None:
        if name not in vars(schedule):
            self._missing.append(f"{schedule.__name__}.{name}")
        self.patches.wrap(schedule, name, make)

    def _run(self, original: Function) -> Function:
        signature = Signature(original)

        def forward_backward_step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                self.runs.forget()
                self.optimizers.forget()
                self._describe(schedule)
                try:
                    return original(schedule, *args, **kwargs)
                finally:
                    self.transfers.close()

            is_evaluation = signature.call((schedule, *args), kwargs).get("optimizer") is None
            return self.runs.evaluation(run) if is_evaluation or not _is_training() else self.runs.step(run)

        return forward_backward_step

    def _forward(self, original: Function) -> Function:
        signature = Signature(original)

        def forward_step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            call = signature.call((schedule, *args), kwargs)
            place = self._begin_forward(schedule, call)
            result = self.runs.action(FORWARD, place, lambda: original(schedule, *args, **kwargs))
            if self.recorder.enabled and _is_training():  # otherwise no backward would remove the entries
                self.runs.places.keep(result, place)
                self.transfers.made(result, place)
            return result

        return forward_step

    def _backward(self, original: Function) -> Function:
        signature = Signature(original)
        kind = KINDS[original.__name__]

        def backward(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            place = self._begin_backward(schedule, kind, signature.call((schedule, *args), kwargs))
            result = self.runs.action(kind, place, lambda: original(schedule, *args, **kwargs))
            if kind != BACKWARD_WEIGHT:
                self.transfers.made(result, place)
            return result

        return backward

    @never_raises(default=UNKNOWN)
    def _begin_forward(self, schedule: Any, call: Call) -> Place:
        chunk = call.get("model_chunk_id")
        place = place_of(schedule, chunk, self.runs.next_number(FORWARD, chunk or 0))
        self.transfers.arrived(call.get("input_obj"), place)
        return place

    @never_raises(default=UNKNOWN)
    def _begin_backward(self, schedule: Any, kind: int, call: Call) -> Place:
        """Return the place of a backward: that of its forward, or by its number if the chunk is known."""
        output, chunk = call.get("output_obj"), call.get("model_chunk_id")
        number = self.runs.next_number(kind, chunk or 0)
        last = kind != BACKWARD_INPUT  # the weight-gradient pass uses the same output later
        found: Place | None = self.runs.places.take(output) if last else self.runs.places.find(output)
        is_known = chunk is not None or getattr(schedule, "num_model_chunks", 1) == 1
        place = found or (place_of(schedule, chunk, number) if is_known else UNKNOWN)
        self.transfers.arrived(call.get("output_obj_grad"), place)
        return place

    def _transfer(self, original: Function) -> Function:
        signature = Signature(original)
        name = original.__name__
        parts = [PARTS[part] for part in re.findall(r"(?:send|recv)_(?:forward|backward)", name)]

        def transfer(communication: Any, *args: Any, **kwargs: Any) -> Any:
            start_ns = now_ns()
            result = original(communication, *args, **kwargs)
            if self.runs.inside and self.recorder.enabled:
                call = signature.call((communication, *args), kwargs)
                sent = args[0] if args and name.startswith("send") else next(iter(kwargs.values()), None)
                self._note(communication, parts, (call, sent, result), (start_ns, now_ns()))
            return result

        return transfer

    @never_raises()
    def _note(
        self,
        communication: Any,
        parts: list[tuple[int, str]],
        values: tuple[Any, Any, Any],
        times: tuple[int, int],
    ) -> None:
        call, sent, result = values
        received = result[0] if isinstance(result, tuple) else result
        for kind, argument in parts:
            peer = call.get(argument)
            if peer is None:
                peer = getattr(communication.stage_manager, f"get_{argument}")()
            if kind in (SEND_FORWARD, SEND_BACKWARD):
                self.transfers.sent(sent, Message(kind, peer, bytes_in(sent), *times))
            else:
                self.transfers.received(received, Message(kind, peer, bytes_in(received), *times))

    @never_raises()
    def _describe(self, schedule: Any) -> None:
        if schedule is self._described or not self.recorder.enabled:
            return
        self._described = schedule
        class_name = next((c.__name__ for c in type(schedule).__mro__ if c.__name__ in SCHEDULES), "")
        manager = schedule.stage_manager
        chunks = getattr(schedule, "num_model_chunks", 1)
        microbatches = getattr(schedule, "num_microbatches", None) or getattr(
            schedule, "num_microbatch", None
        )
        self.recorder.describe(
            framework={"name": "colossalai", "missing": self._missing},
            parallel={"pp": manager.stage, "pp_size": manager.num_stages},
            schedule={
                "name": SCHEDULES[class_name][0] if class_name else None,
                "class": type(schedule).__name__,
                "microbatches": microbatches,
                "stages": manager.num_stages * chunks,
                "local_stages": [place_of(schedule, chunk, NONE).stage for chunk in range(chunks)],
            },
        )


def place_of(schedule: Any, chunk: int | None, microbatch: int) -> Place:
    """Return the place of an action: stages go around the ranks, or down and back up in the V of ZBV."""
    manager = schedule.stage_manager
    if chunk is None:
        return Place(manager.stage, microbatch)
    if chunk % 2 and any(c.__name__ == "ZeroBubbleVPipeScheduler" for c in type(schedule).__mro__):
        return Place((chunk + 1) * manager.num_stages - 1 - manager.stage, microbatch, chunk)
    return Place(chunk * manager.num_stages + manager.stage, microbatch, chunk)


def _is_training() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())
