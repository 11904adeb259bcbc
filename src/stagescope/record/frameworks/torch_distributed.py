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
from stagescope.record.hooks import prepared
from stagescope.record.points.torch_distributed import C10D, FRAMEWORK, OPERATIONS, PACKAGE, PARTS, ROOTED

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call, Signature
    from stagescope.record.frameworks.collectives import Begun, Collectives
    from stagescope.record.hooks import Watch
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
        self.transfer = self.transfers.watch
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

    @prepared
    def collective(self, signature: Signature) -> Watch:
        """Observe a method of a process group that issues a collective."""
        return Issue(self.collectives, OPERATIONS[signature.name])

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


class Issue:
    """Watches a method of a process group that issues a collective, and returns a handle or None."""

    def __init__(self, collectives: Collectives, operation: str) -> None:
        self._begin, self.end = collectives.begin, collectives.end
        self._operation, self._asynchronous = operation, operation + ASYNCHRONOUS
        self._place_of_root = ROOTED.get(operation)
        self._describe = collectives.describe_call

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Begun | None:
        """Begin a collective, whose last argument are its options."""
        options = kwargs["opts"] if "opts" in kwargs else args[-1]
        is_asynchronous = getattr(options, "asyncOp", False)
        operation = self._asynchronous if is_asynchronous else self._operation
        if self._place_of_root is None:
            return self._begin(operation, args[0], args[1:3])
        root = _root(args, kwargs, options, self._place_of_root)
        return self._begin(operation, args[0], args[1:3], root)

    def abandon(self, state: Any) -> None:
        """Forget a collective that failed."""

    def describe(self, state: Begun) -> dict[str, object]:
        """Return the collective that is being issued, see record/process_state.py."""
        return self._describe(state)


def _root(args: tuple[Any, ...], kwargs: dict[str, Any], options: Any, place: int) -> int | None:
    """Return the root of a collective in its group: from its options, or passed by itself; None if it is unknown."""
    root = getattr(options, "rootRank", None)
    if root is None:
        root = kwargs.get("root", args[place] if place < len(args) else None)
    return root if type(root) is int else None
