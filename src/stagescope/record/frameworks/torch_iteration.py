"""Records what a torch training does between its steps: loading data, checkpoints, clipping, the optimizer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from stagescope.record.data_sizes import count_data
from stagescope.record.frameworks import host_activities
from stagescope.record.frameworks.host_activities import activities_of
from stagescope.record.frameworks.optimizer_steps import optimizer_steps
from stagescope.record.frameworks.shared import shared
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.torch_iteration import OPTIMIZER, PARTS

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]


def instrument(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe one of the modules of torch, right after its import."""
    instrumentation = shared(recorder, Instrumentation, recorder, patches)
    for part in PARTS:
        if part.trigger == module.__name__:
            installation = Installation(recorder, patches)
            guard = installation.guard(part.framework)
            more = (
                partial(optimizer_steps(recorder).register, patches, guard)
                if part.trigger == OPTIMIZER
                else None
            )
            installation.install(part, instrumentation, modules_by_name(module), more)


class Instrumentation:
    """The observers of a training's own calls."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.activities = activities_of(recorder)

    def load(self, call: Call) -> Observation:
        """Observe ``__next__`` of the iterator of a DataLoader: the time until the next batch is there."""
        del call
        batch = yield from self.activities.observe(host_activities.DATA_LOADING)
        place = self.activities.forward
        if place is not None and self.recorder.enabled:
            count_data(self.recorder, batch, *place[:2])
        return batch

    def checkpoint(self, call: Call) -> Observation:
        """Observe a function that saves a checkpoint."""
        del call
        return self.activities.observe(host_activities.CHECKPOINT)

    def clip(self, call: Call) -> Observation:
        """Observe a function that clips gradients. Its collectives are the norm over all ranks."""
        del call
        return self.activities.observe(host_activities.CLIPPING)

    def adjust_rate(self, call: Call) -> Observation:
        """Observe the step of a learning-rate scheduler."""
        del call
        return self.activities.observe(host_activities.LEARNING_RATE)
