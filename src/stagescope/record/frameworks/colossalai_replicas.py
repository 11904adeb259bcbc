"""Data parallelism of ColossalAI: the place of this rank among its replicas, and the reductions of their gradients.

* ``HybridParallelModule`` (colossalai/booster/plugin/hybrid_parallel_plugin.py) is the model of a pipeline with
  replicas. The plugin calls its ``sync_...`` methods once the schedule has run; each reduces with one collective per
  parameter. DDP, which it uses where asked to, is torch's.
* ``LowLevelZeroOptimizer`` (colossalai/zero/low_level/low_level_optim.py) reduces buckets of gradients, during the
  backward passes or after them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from stagescope.record.calls import never_raises
from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import collectives_of
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.colossalai import REPLICAS

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]


def instrument(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe one of these two modules, right after its import."""
    for part in REPLICAS:
        if part.trigger == module.__name__:
            install = Installation(recorder, patches).install
            install(part, Instrumentation(recorder, patches), modules_by_name(module))


class Instrumentation:
    """The observers of data parallelism."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        del patches
        self.recorder = recorder
        self.collectives = collectives_of(recorder)

    def replicate(self, call: Call) -> Observation:
        """Observe the construction of a model with replicas."""
        yield
        self._note(call.owner)

    def reduce(self, call: Call) -> Observation:
        """Observe a call whose collectives reduce gradients: those of the action in progress, or of the stage."""
        stage = self.recorder.stage
        manager = getattr(call.owner, "stage_manager", None)
        if stage == NONE and manager is not None:
            stage = int(manager.stage)
        return self.collectives.observe_reduction(stage)

    @never_raises()
    def _note(self, model: Any) -> None:
        import torch.distributed as dist  # already imported by the training

        groups = {name: getattr(model, f"{name}_group", None) for name in ("dp", "tp")}
        coordinates_of(self.recorder).update(
            {name: dist.get_rank(group) for name, group in groups.items() if group is not None}
        )


_of_recorder: WeakKeyDictionary[Recorder, dict[str, int]] = WeakKeyDictionary()


def coordinates_of(recorder: Recorder) -> dict[str, int]:
    """Return the known coordinates of this rank besides its stage; they are filled in when a model is made."""
    return _of_recorder.setdefault(recorder, {})
