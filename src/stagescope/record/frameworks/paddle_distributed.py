"""Records the collectives of paddle.distributed, its transfers outside of schedules, and its gradient reductions.

All of them go through methods of ProcessGroup, which return a task to wait for (``sync_op=False`` passes it on to the
training). Methods whose names end with ``_on_calc_stream`` run on the stream of the computation. Not seen are those of
static graphs.

What ``fused_allreduce_gradients``, the sharding optimizers and the fused buffers of gradients issue reduces gradients.
So does each ``reduce`` in the group of a ``GroupShardedStage2`` (sharding stage 2), which issues them in hooks of its
parameters, one for each bucket or parameter. For ``paddle.DataParallel`` see paddle_replicas.py.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from stagescope.record.format import NONE
from stagescope.record.frameworks.collectives import (
    ASYNCHRONOUS,
    Size,
)
from stagescope.record.frameworks.groups import NAME_CHARACTERS, Group, ranks_text
from stagescope.record.frameworks.paddle_facts import OwnStage
from stagescope.record.frameworks.paddle_replicas import HookedReduction, Replica, sliced_parameters
from stagescope.record.frameworks.paddle_transfers import size_of
from stagescope.record.frameworks.process_groups import ProcessGroups
from stagescope.record.frameworks.runs import IdentityMap
from stagescope.record.frameworks.shared import shared
from stagescope.record.points.paddle_distributed import FRAMEWORK, GROUPS, OPERATIONS, PARTS, ROOTED

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import ModuleType

    from stagescope.record.calls import Call
    from stagescope.record.patching import Patches
    from stagescope.record.recorder import Recorder

    Observation = Generator[None, Any, Any]


GLOO = "ProcessGroupGloo"
"""The class of the groups whose methods return when the collective has ended, whether it is asynchronous or not."""


def instrument(module: ModuleType, recorder: Recorder, patches: Patches) -> None:
    """Observe one of the modules of Paddle, right after its import."""
    shared(recorder, Instrumentation, recorder, patches).install(module)


class Instrumentation(ProcessGroups):
    """The observers of paddle.distributed."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        super().__init__(recorder, patches)
        self._own = shared(recorder, OwnStage)
        self._known = IdentityMap()
        self._sharded = IdentityMap()
        self._replicas: list[Replica] = []

    def install(self, module: ModuleType) -> None:
        """Install the part that `module` triggers."""
        self.install_parts(module, PARTS, {GROUPS: self._observe_waits})

    def _observe_waits(self) -> None:
        guard = self.installation.guard(FRAMEWORK)
        self.collectives.works.observe_classes(self.patches, guard)
        self.observe_exit(guard)

    def collective(self, call: Call) -> Observation:
        """Observe a method of a process group that issues a collective and returns its task."""
        self._describe_group(call.owner)
        operation = OPERATIONS[call.name]
        place = ROOTED.get(operation)
        is_on_stream = call.name.endswith("_on_calc_stream")
        given = [*call.arguments[1:], *call.keywords.values()]
        if not is_on_stream and given and given[-1] is False:  # sync_op
            operation += ASYNCHRONOUS
        size_bytes = max((max(size_of(each), 0) for each in given[:2]), default=0)
        root = given[place] if place is not None and place < len(given) else None
        root = root if type(root) is int else None
        reduces = OPERATIONS[call.name] == "reduce" and self._sharded.find(call.owner) is not None
        with self.collectives.reducing() if reduces else nullcontext():
            observation = self.collectives.observe(operation, call.owner, (Size(size_bytes),), root)
            next(observation, None)  # one that is only counted ends here
        try:
            task = yield
        except BaseException:  # re-raised
            observation.close()
            raise
        with suppress(StopIteration):
            observation.send(None if is_on_stream or type(call.owner).__name__ == GLOO else task)

    def counts_collective(self, arguments: tuple[Any, ...]) -> bool:
        """Count a collective and return True, if it is not to be recorded one by one."""
        return id(arguments[0]) not in self._sharded.ids and self.counts_only(arguments)

    def shard(self, call: Call) -> Observation:
        """Observe the construction of a GroupShardedStage2."""
        yield
        self._sharded.keep(call.owner._group.process_group, value=True)  # noqa: SLF001  # no public name

    def slice(self, call: Call) -> Observation:
        """Observe how a GroupShardedStage3 registers the hooks of its parameters that reduce their gradients."""
        parameters = sliced_parameters(call.owner)
        reduction, guard = HookedReduction(self.collectives), self.installation.guard(FRAMEWORK)
        for parameter in parameters:
            parameter._register_backward_hook(guard.callback(reduction.begin))  # noqa: SLF001  # no public name
        yield
        for parameter in parameters:
            parameter._register_backward_hook(guard.callback(reduction.end))  # noqa: SLF001  # as above

    def replicate(self, call: Call) -> Observation:
        """Observe ``DataParallel.init_reducer``, after which the parameters have the hooks of the reducer."""
        yield
        self._describe_group(call.owner.group.process_group)
        replica = Replica(self.collectives, call.owner)
        replica.install(self.installation.guard(FRAMEWORK), self.patches)
        self._replicas = [*(known for known in self._replicas if known.exists), replica]

    def prepare_reduction(self, call: Call) -> Observation:
        """Observe ``EagerReducer.prepare_for_backward``: the next backward reduces its gradients."""
        yield
        for replica in self._replicas:
            replica.prepare(call.owner)

    def transfer(self, call: Call) -> Observation:
        """Observe a method of a process group that sends or receives a tensor and returns its task."""
        self._describe_group(call.owner)
        tensor, peer = [*call.arguments[1:], *call.keywords.values()][:2]
        plain = SimpleNamespace(
            owner=call.owner,
            name=call.name[:4],
            arguments=(call.owner, Size(max(size_of(tensor), 0)), peer, 0),
            keywords={},
        )
        return self.transfers.observe(plain)  # type: ignore[arg-type]  # has what is read of a Call

    def reduce(self, call: Call) -> Observation:
        """Observe a call whose collectives reduce gradients."""
        del call
        stage = self.recorder.stage
        return self.collectives.observe_reduction(
            self._own.stage if stage == NONE else stage, self.recorder.chunk
        )

    def _describe_group(self, owner: Any) -> None:
        """Let the collectives know a process group: only Paddle's groups in Python have its ranks."""
        if self._known.find(owner) is None:
            self._known.keep(owner, value=True)
            group = group_of(owner)
            if group is not None:
                self.collectives.keep_group(owner, group)


def group_of(owner: Any) -> Group:
    """Return the group of a process group of Paddle."""
    groups = sys.modules[GROUPS]._GroupManager.group_map_by_id.values()  # noqa: SLF001  # no public list of groups
    found = next((group for group in groups if group.process_group is owner), None)
    if found is None:
        return Group(f"group of {owner.size()} ranks", owner.size())
    ranks = list(found.ranks)
    return Group(f"{ranks_text(ranks)} ({str(found.name)[:NAME_CHARACTERS]})", len(ranks), ranks)
