"""Instruments fleet's training of a pipeline model on one stage: ``NoPipelineParallel``, from Paddle 3.3.1.

It runs all micro-batches in a loop that calls the layers and the automatic differentiation directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.calls import never_raises
from stagescope.record.frameworks.paddle_facts import describe_device, process_facts, schedule_facts
from stagescope.record.frameworks.runs import BACKWARD, FORWARD, Place, Runs
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.paddle import SINGLE

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]


def instrument(pipelines: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe the class in `pipelines`, the imported module ...fleet.meta_parallel.pipeline_parallel."""
    hooks = Instrumentation(recorder, patches)
    Installation(recorder, patches).install(SINGLE, hooks, modules_by_name(pipelines))


class Instrumentation:
    """The observers, and the model that is being trained."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.runs = Runs(recorder, SINGLE.framework)
        self._patches = patches
        self._guard = Installation(recorder, patches).guard(SINGLE.framework)
        self._running: Any = None
        self._in_pass = False
        self._described: object = None

    def step(self, call: Call) -> Observation:
        """Observe a training step."""
        if not self.runs.inside:
            yield from self._observe(call.owner, self.runs.observe_step())

    def evaluation(self, call: Call) -> Observation:
        """Observe an evaluation."""
        if not self.runs.inside:
            yield from self._observe(call.owner, self.runs.observe_evaluation())

    def _observe(self, model: Any, run: Observation) -> Observation:
        if model is not self._described:
            self._described = model
            self._observe_layers(model)
            self._describe(model)
        self._running, self._in_pass = model, False
        try:
            yield from run
        finally:
            self._running = None

    def _observe_layers(self, model: Any) -> None:
        """Observe the forward of a model that redefines it."""
        layers = type(model._layers)  # noqa: SLF001  # no public name
        defining = next((one for one in layers.__mro__ if "forward" in vars(one)), layers)
        self._patches.observe(defining, "forward", self.forward, self._guard)

    @never_raises()
    def _describe(self, model: Any) -> None:
        describe_device(self.recorder)
        schedule = schedule_facts(model, None, [0], 1)
        self.recorder.describe(**process_facts(), schedule=schedule)

    def forward(self, call: Call) -> Observation:
        """Observe the forward of the layers."""
        if self._running is not None and call.owner is self._running._layers:  # noqa: SLF001  # no public name
            yield from self._observe_pass(FORWARD)

    def backward(self, call: Call) -> Observation:
        """Observe a backward. A recomputed part of the model calls it again inside."""
        del call
        if self._running is not None:
            yield from self._observe_pass(BACKWARD)

    def _observe_pass(self, kind: int) -> Observation:
        if self._in_pass:
            return
        self._in_pass = True
        try:
            yield from self.runs.observe_action(kind, Place(0, self.runs.next_number(kind, 0)))
        finally:
            self._in_pass = False
