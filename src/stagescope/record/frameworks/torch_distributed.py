"""Records the collectives of torch.distributed, and the gradient reductions of its data parallelism.

* ``ProcessGroup``: every collective that Python issues; see collectives.py. Its sends and receives outside of the
  schedules that are recorded are plain transfers; see torch_transfers.py.
* ``DistributedDataParallel``, whose reductions are issued in C++: see torch_replicas.py.
* ``FSDPParamGroup`` of FSDP2: the collectives that its ``post_backward`` issues reduce gradients. On a device, FSDP2
  runs its collectives on streams of their own, beside the actions.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.collectives import ASYNCHRONOUS
from stagescope.record.frameworks.process_groups import ProcessGroups
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.torch_replicas import Replica
from stagescope.record.points.torch_distributed import C10D, FRAMEWORK, OPERATIONS, PACKAGE, PARTS, ROOTED

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]


def instrument(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe one of the modules of torch, right after its import."""
    shared(recorder, Instrumentation, recorder, patches).install(module)


class Instrumentation(ProcessGroups):
    """The observers of torch.distributed."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        super().__init__(recorder, patches)
        self.transfer = self.transfers.observe
        self._replicas: list[Replica] = []

    def install(self, module: ModuleType) -> None:
        """Install the part that `module` triggers."""
        self.install_parts(module, PARTS, {C10D: self._install_waits})

    def _install_waits(self) -> None:
        guard = self.installation.guard(FRAMEWORK)
        self.collectives.works.install(self.patches, guard)
        package = sys.modules[PACKAGE]  # has imported the name from the module if torch was imported earlier
        self.patches.observe(package, "destroy_process_group", self.leave, guard)
        self.observe_exit(guard)

    def collective(self, call: Call) -> Observation:
        """Observe a method of a process group that issues a collective."""
        operation = OPERATIONS[call.name]
        options = call.keywords.get("opts", call.arguments[-1])
        root = _root(call, options) if operation in ROOTED else None
        if getattr(options, "asyncOp", False):
            operation += ASYNCHRONOUS
        return self.collectives.observe(operation, call.owner, call.arguments[1:3], root)

    def ignores_coalescing(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether the collectives of a group that have one handle are only counted."""
        del arguments
        return self.recorder.counts_collectives

    def begin_coalescing(self, call: Call) -> Observation:
        """Observe the beginning of a group of collectives that have one handle."""
        del call
        yield
        self.collectives.begin_coalescing()
        self.transfers.begin_coalescing()

    def end_coalescing(self, call: Call) -> Observation:
        """Observe its end, which returns the handle."""
        del call
        work = yield
        self.collectives.end_coalescing(work)
        self.transfers.end_coalescing(work)

    def replicate(self, call: Call) -> Observation:
        """Observe the construction of a DistributedDataParallel."""
        yield
        replica = Replica(self.collectives, call.owner)
        replica.install(call.owner, self.installation.guard(FRAMEWORK), self.patches)
        self._replicas = [*(known for known in self._replicas if known.exists), replica]

    def prepare_reduction(self, call: Call) -> Observation:
        """Observe ``Reducer.prepare_for_backward``: the next backward reduces its gradients."""
        yield
        for replica in self._replicas:
            replica.prepare(call.owner)

    def shard_reduction(self, call: Call) -> Observation:
        """Observe ``FSDPParamGroup.post_backward``, which reduces the gradients of a group of parameters."""
        del call
        with self.collectives.reducing(), self.collectives.beside():
            return (yield)

    def unshard(self, call: Call) -> Observation:
        """Observe ``FSDPParamGroup.unshard``, which gathers the parameters of a group.

        Where the host waits for them, an action that needs them lasts longer. Beside the actions of a device they are
        like any other collective.
        """
        del call
        gathers = self.collectives
        with gathers.beside() if self.recorder.timer.device else gathers.recording():
            return (yield)


def _root(call: Call, options: Any) -> int | None:
    """Return the root of a collective in its group: from its options, or passed by itself; None if it is unknown."""
    root = getattr(options, "rootRank", None)
    if root is None:
        passed = call.arguments[ROOTED[OPERATIONS[call.name]] :]
        root = call.keywords.get("root", passed[0] if passed else None)
    return root if type(root) is int else None
