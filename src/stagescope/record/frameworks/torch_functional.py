"""Records the functional collectives of torch: those of DTensor, of its parallel styles, and of expert parallelism.

A function of torch.distributed._functional_collectives issues its collective in C++ and returns a tensor that waits for
it when it is used, with ``wait_tensor`` of that module. They are numbered with the other collectives of their groups
(collectives.py). Not seen are those that C++ issues by itself: in the backward of a function that autograd
differentiates (DTensor's own backward calls the functions), and in code that torch.compile has generated.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.collectives import (
    ASYNCHRONOUS,
    MOST_UNDER_WAY,
    Size,
    collectives_of,
    size_of,
)
from stagescope.record.frameworks.shared import shared
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.torch_functional import FUNCTIONAL, OPERATIONS, PARTS

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
            Installation(recorder, patches).install(part, instrumentation, modules_by_name(module))


class Handle:
    """Takes the place of the handle that torch keeps in C++ for the memory of a result."""


class Instrumentation:
    """The observers of functional collectives."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.collectives = collectives_of(recorder)
        self._handles: dict[int, Handle] = {}
        self._is_inside = False

    def ignores_collective(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a call is part of another one, or is traced instead of executed."""
        del arguments
        return self._is_inside or is_traced()

    def collective(self, call: Call) -> Observation:
        """Observe a function that issues a collective and returns a tensor or several."""
        return (yield from self._observe(OPERATIONS[call.name], call, process_group_of(call.get("group"))))

    def change_dimension(self, call: Call) -> Observation:
        """Observe ``shard_dim_alltoall`` of DTensor, which gathers with another function on a CPU."""
        mesh = call.get("mesh")
        if mesh.device_type == "cpu":
            return (yield)
        group = mesh.get_group(call.get("mesh_dim"))
        return (yield from self._observe(OPERATIONS[call.name], call, group))

    def ignores_wait(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether nothing is under way."""
        del arguments
        return not self._handles or is_traced()

    def wait(self, call: Call) -> Observation:
        """Observe ``wait_tensor``, which receives a result or another view of its memory."""
        handle = self._handles.pop(memory_of(call.get("tensor")), None)
        return self.collectives.works.observe_wait(handle)

    def _handle_of(self, result: Any) -> Handle | None:
        """Return the handle for a result of a collective; None if that has been waited for."""
        first = result[0] if isinstance(result, (list, tuple)) and result else result
        waiting = getattr(first, "elem", None)  # of an AsyncCollectiveTensor
        if waiting is None:
            return None
        handle = self._handles[memory_of(waiting)] = Handle()
        if len(self._handles) > MOST_UNDER_WAY:
            del self._handles[next(iter(self._handles))]
        return handle

    def _observe(self, operation: str, call: Call, owner: Any) -> Observation:
        if owner is None:
            return (yield)
        size_bytes = size_of(call.arguments[0])
        if operation == "all_gather":
            size_bytes *= self.collectives.group_of(owner).size
        root = call.get("src") if operation == "broadcast" else None
        observation = self.collectives.observe(operation + ASYNCHRONOUS, owner, (Size(size_bytes),), root)
        next(observation, None)  # one that is only counted ends here
        self._is_inside = True
        try:
            result = yield
        except BaseException:  # re-raised
            observation.close()
            raise
        finally:
            self._is_inside = False
        with suppress(StopIteration):
            observation.send(self._handle_of(result))
        return result


def is_traced() -> bool:
    """Return whether calls are only traced, with tensors that have no memory."""
    return bool(getattr(sys.modules.get(FUNCTIONAL), "_are_we_tracing", bool)())


def memory_of(tensor: Any) -> int:
    """Return a number that all views of the memory of a tensor share, as long as one of them exists."""
    return int(getattr(tensor, "elem", tensor).untyped_storage()._cdata)  # noqa: SLF001  # torch's own identity of it


def process_group_of(group: Any) -> Any:
    """Return the process group that an argument of a functional collective means; None for a list of ranks."""
    if isinstance(group, str):
        import torch.distributed as dist  # already imported by the training

        return dist.distributed_c10d._resolve_process_group(group)  # noqa: SLF001  # no public name
    if isinstance(group, tuple):
        mesh, dimension = group
        return mesh.get_group(dimension)
    if hasattr(group, "get_group"):
        return group.get_group()
    return None if isinstance(group, list) else group
