"""Instruments ColossalAI's pipeline schedules: 1F1B, interleaved and ZBV; ColossalAI 0.3.9 to 0.5.0.

Observed are ``forward_step``, ``backward_step``, ``backward_b_step`` and ``schedule_w`` of the schedules in
colossalai/pipeline/schedule and, as the run, ``forward_backward_step``; and the methods of colossalai/pipeline/p2p.py
that send and receive. The forwards of a chunk run in micro-batch order; a backward is identified by the output that its
forward returned.

ZBV keeps what it defers in queues of each chunk: weight gradients in ``WeightGradStore``, of which ``schedule_w`` runs
the oldest (``backward_w_step`` exists but is not called), and outputs to be sent, of which ``send_forward`` takes the
oldest. Both queues are filled in micro-batch order, so the micro-batch is the number of earlier calls. An output cannot
be found by identity there, because a copy of it is sent.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.colossalai_replicas import coordinates_of
from stagescope.record.frameworks.colossalai_transfers import ColossalaiTransfers
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
from stagescope.record.frameworks.transfers import SEND_FORWARD
from stagescope.record.frameworks.works import works_of
from stagescope.record.installation import Installation, version_of
from stagescope.record.patching import MARK
from stagescope.record.points.colossalai import (
    FRAMEWORK,
    P2P_MODULE,
    PIPELINE,
    ZERO_BUBBLE,
    ZERO_BUBBLE_MODULE,
)

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.hooks import Guard
    from stagescope.record.patching import Patches
    from stagescope.record.points import Part
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]

SCHEDULES = {
    "OneForwardOneBackwardSchedule": "1f1b",
    "InterleavedSchedule": "interleaved",
    "ZeroBubbleVPipeScheduler": "zb-v",
}
"""ColossalAI's classes, and the usual names of their orders."""


def instrument(schedules: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe `schedules`, the imported package colossalai.pipeline.schedule, and the transfers that it uses."""
    hooks = Instrumentation(recorder, patches)
    installation = Installation(recorder, patches)
    modules = {schedules.__name__: schedules}
    guard = installation.guard(FRAMEWORK)
    installation.install(PIPELINE, hooks, modules, lambda: hooks.register(PIPELINE, guard))
    if ZERO_BUBBLE_MODULE in sys.modules:
        installation.install(ZERO_BUBBLE, hooks, modules, lambda: hooks.register(ZERO_BUBBLE, guard))


class Instrumentation:
    """The observers and their shared state: the run, the outputs of its forwards and the messages in progress."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.runs = Runs(recorder, FRAMEWORK)
        self.transfers = ColossalaiTransfers(recorder)
        self.optimizers = optimizer_steps(recorder)
        self._described: object = None

    def register(self, part: Part, guard: Guard) -> None:
        """Register with torch what both parts need, once, and note the transfers that are not observed."""
        self.optimizers.register(self.patches, guard)
        missing = unknown_transfers() if part is PIPELINE else []
        try:
            works_of(self.recorder).install(self.patches, guard)
        except (AttributeError, ImportError):
            missing.append("the wait for each message")
        if missing:
            self.recorder.coverage.installed(part.framework, None, missing)

    def run(self, call: Call) -> Observation:
        """Observe a run of a schedule: a training step, or an evaluation."""
        self.runs.forget()
        self.optimizers.forget()
        self._describe(call.owner)
        is_evaluation = call.get("optimizer") is None or not _is_training()
        try:
            if is_evaluation:
                yield from self.runs.observe_evaluation()
            else:
                yield from self.runs.observe_step()
        finally:
            self.transfers.close()

    def created(self, call: Call) -> Observation:
        """Observe the creation of a schedule, to name those that are not recorded."""
        yield
        schedule: Any = type(call.owner)
        name = f"{FRAMEWORK} {schedule.__name__}"
        if (
            not hasattr(schedule.forward_backward_step, MARK)
            and name not in self.recorder.coverage.frameworks
        ):
            version = version_of(PIPELINE.distribution)
            self.recorder.coverage.refused(name, version, ["this schedule is not known"])

    def forward(self, call: Call) -> Observation:
        """Observe the forward of one micro-batch."""
        place = self._begin_forward(call)
        result = yield from self.runs.observe_action(FORWARD, place)
        if not self.recorder.enabled:
            return
        self.transfers.made(result, place)
        if _is_training():  # otherwise no backward would remove the entry
            self.runs.places.keep(result, place)

    def backward(self, call: Call) -> Observation:
        """Observe a complete backward."""
        return self._observe_backward(BACKWARD, call)

    def backward_input(self, call: Call) -> Observation:
        """Observe a backward that leaves weight gradients for later."""
        return self._observe_backward(BACKWARD_INPUT, call)

    def backward_weight(self, call: Call) -> Observation:
        """Observe the computation of the oldest weight gradients of a chunk."""
        yield from self.runs.observe_action(BACKWARD_WEIGHT, self._next_place(BACKWARD_WEIGHT, call))

    def transfer(self, call: Call) -> Observation:
        """Observe a send, a receive, or both."""
        if self.runs.inside and self.recorder.enabled:
            yield from self.transfers.observe_call(call)

    def send_queued(self, call: Call) -> Observation:
        """Observe the send of the oldest output in the queue of a chunk, if this stage sends its outputs."""
        self.transfers.queued_place = self._next_place(SEND_FORWARD, call)
        try:
            yield
        finally:
            self.transfers.queued_place = UNKNOWN

    def _observe_backward(self, kind: int, call: Call) -> Observation:
        place = self._begin_backward(kind, call)
        result = yield from self.runs.observe_action(kind, place)
        self.transfers.made(result, place)

    @never_raises(default=UNKNOWN)
    def _begin_forward(self, call: Call) -> Place:
        place: Place = self._next_place(FORWARD, call)
        self.transfers.arrived(call.get("input_obj"), place)
        return place

    @never_raises(default=UNKNOWN)
    def _begin_backward(self, kind: int, call: Call) -> Place:
        """Return the place of a backward: that of its forward, or by its number if the chunk is known."""
        numbered = self._next_place(kind, call)
        is_known = call.get("model_chunk_id") is not None or getattr(call.owner, "num_model_chunks", 1) == 1
        found: Place | None = self.runs.places.take(call.get("output_obj"))
        place = found or (numbered if is_known else UNKNOWN)
        self.transfers.arrived(call.get("output_obj_grad"), place)
        return place

    @never_raises(default=UNKNOWN)
    def _next_place(self, kind: int, call: Call) -> Place:
        """Return the place of the next call of a kind for its chunk. Counts even while recording is off."""
        chunk = call.get("model_chunk_id")
        return place_of(call.owner, chunk, self.runs.next_number(kind, chunk or 0))

    @never_raises()
    def _describe(self, schedule: Any) -> None:
        if schedule is self._described or not self.recorder.enabled:
            return
        self._described = schedule
        names = (SCHEDULES.get(one.__name__) for one in type(schedule).__mro__)
        manager = schedule.stage_manager
        chunks = getattr(schedule, "num_model_chunks", 1)
        microbatches = getattr(schedule, "num_microbatches", None) or getattr(
            schedule, "num_microbatch", None
        )
        self.recorder.describe(
            framework={"name": "colossalai", "version": version_of(PIPELINE.distribution)},
            parallel={
                "pp": int(manager.stage),
                "pp_size": int(manager.num_stages),
                **coordinates_of(self.recorder),
            },
            schedule={
                "name": next(filter(None, names), None),
                "class": type(schedule).__name__,
                "microbatches": microbatches,
                "stages": int(manager.num_stages) * chunks,
                "local_stages": [place_of(schedule, chunk, NONE).stage for chunk in range(chunks)],
            },
        )


def place_of(schedule: Any, chunk: int | None, microbatch: int) -> Place:
    """Return the place of an action: stages go around the ranks, or down and back up in the V of ZBV."""
    manager = schedule.stage_manager
    stage, stages = int(manager.stage), int(manager.num_stages)  # numpy's integers
    if chunk is None:
        return Place(stage, microbatch)
    if chunk % 2 and any(c.__name__ == "ZeroBubbleVPipeScheduler" for c in type(schedule).__mro__):
        return Place((chunk + 1) * stages - 1 - stage, microbatch, chunk)
    return Place(chunk * stages + stage, microbatch, chunk)


def unknown_transfers() -> list[str]:
    """Return what is missing because a version has methods that send or receive and are not declared."""
    declared = {point.name for point in PIPELINE.points}
    communication = getattr(sys.modules.get(P2P_MODULE), "PipelineP2PCommunication", object)
    found = (name for name in vars(communication) if name.startswith(("send_", "recv_")))
    return [f"messages of `{name}`" for name in found if name not in declared]


def _is_training() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or bool(torch.is_grad_enabled())
