"""Names the schedules that are not recorded, and keeps other hooks from recording a part of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.runs import Runs, within
from stagescope.record.installation import Installation
from stagescope.record.points.unrecorded import PARTS

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, object]

PART_OF = {part.trigger: part for part in PARTS}


def instrument(schedules: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe the entries of `schedules`, the imported module of a framework."""
    part = PART_OF[schedules.__name__]
    module = schedules.__name__.rpartition(".")[2]
    instrumentation = Instrumentation(recorder, patches, part.framework, module)
    Installation(recorder, patches).install(part, instrumentation, {schedules.__name__: schedules})


class Instrumentation:
    """The observer of the entries of schedules in one module."""

    def __init__(self, recorder: Recorder, patches: Patches, framework: str = "", module: str = "") -> None:
        self.recorder = recorder
        self.patches = patches
        self.module = module
        self.runs = Runs(recorder, framework)

    def schedule(self, call: Call) -> Observation:
        """Observe a schedule: name it, record its step, and no action in it."""
        run = self.runs.observe_evaluation if call.get("forward_only") else self.runs.observe_step
        return (yield from within(run(), within(self.runs.observe_alone(), self._name(call))))

    def _name(self, call: Call) -> Observation:
        name = f"{self.module}.{call.name}"  # modules of MindSpeed have functions of the same name
        self.recorder.coverage.schedule_is_unrecorded(self.runs.framework, name)
        return (yield)
