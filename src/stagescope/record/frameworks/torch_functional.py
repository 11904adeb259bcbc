"""Records the functional collectives of torch: those of DTensor, of its parallel styles, and of expert parallelism.

A function of torch.distributed._functional_collectives issues its collective in C++ and returns a tensor that waits for
it when it is used, with ``wait_tensor`` of that module. They are numbered with the other collectives of their groups
(collectives.py). For code that torch.compile has generated see torch_operators.py.

Not seen are collectives that C++ issues by itself: in the C++ code of ``cpp_wrapper`` and AOTInductor, and in kernels
that communicate (``symm_mem``).
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from weakref import ref

from stagescope.record.frameworks.collectives import (
    ASYNCHRONOUS,
    MOST_UNDER_WAY,
    Size,
    collectives_of,
    size_of,
)
from stagescope.record.frameworks.shared import shared
from stagescope.record.frameworks.torch_operators import Issue, Operators, process_group_of
from stagescope.record.installation import Installation, modules_by_name
from stagescope.record.points.torch_functional import FRAMEWORK, FUNCTIONAL, OPERATIONS, PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
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
            more = instrumentation.observe_operators if part.trigger == FUNCTIONAL else None
            Installation(recorder, patches).install(part, instrumentation, modules_by_name(module), more)


class Handle:
    """Takes the place of the handle that torch keeps in C++ for the memory of a result.

    A result that may be dropped without a wait is given: another one may have its memory afterwards.
    """

    def __init__(self, result: Any = None) -> None:
        self._result = None if result is None else ref(result)

    @property
    def is_dropped(self) -> bool:
        """Whether the result does not exist any more."""
        return self._result is not None and self._result() is None


class Instrumentation:
    """The observers of functional collectives."""

    def __init__(self, recorder: Recorder, patches: Patches) -> None:
        self.recorder = recorder
        self.patches = patches
        self.collectives = collectives_of(recorder)
        self._handles: dict[int, Handle] = {}
        self.is_inside = False

    def ignores_collective(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a call is part of another one, or is traced instead of executed."""
        del arguments
        return self.is_inside or is_traced()

    def is_compiling(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a call is traced instead of executed."""
        del arguments
        return is_traced()

    def collective(self, call: Call) -> Observation:
        """Observe a function that issues a collective and returns a tensor or several."""
        owner = process_group_of(call.get("group"))
        issue = Issue(OPERATIONS[call.name], call.arguments[0], owner, call.get("src"))
        return (yield from self.observe(issue, waiting_in))

    def change_dimension(self, call: Call) -> Observation:
        """Observe ``shard_dim_alltoall`` of DTensor, which gathers with another function on a CPU."""
        mesh = call.get("mesh")
        if mesh.device_type == "cpu":
            return (yield)
        issue = Issue(OPERATIONS[call.name], call.arguments[0], mesh.get_group(call.get("mesh_dim")))
        return (yield from self.observe(issue, waiting_in))

    def ignores_wait(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether nothing is under way."""
        del arguments
        return not self._handles or is_traced()

    def wait(self, call: Call) -> Observation:
        """Observe ``wait_tensor``, which receives a result or another view of its memory."""
        return self.observe_wait(call.get("tensor"))

    def observe_operators(self) -> None:
        """Observe the operators that compiled code calls."""
        Operators(self).install(Installation(self.recorder, self.patches).guard(FRAMEWORK), self.patches)

    def observe_wait(self, tensor: Any) -> Observation:
        """Observe a call that waits for a result or another view of its memory."""
        handle = self._handles.pop(memory_of(tensor), None)
        return self.collectives.works.observe_wait(None if handle is None or handle.is_dropped else handle)

    def observe(self, issue: Issue, waiting_in: Callable[[Any], Any]) -> Observation:
        """Observe a call that issues a collective.

        `waiting_in` returns the tensor whose memory is waited for, from the result of the call.
        """
        operation, tensors, owner, root = issue
        if owner is None:
            return (yield)
        size_bytes = self.size_of(operation, tensors, owner)
        root = root if operation == "broadcast" else None
        observation = self.collectives.observe(operation + ASYNCHRONOUS, owner, (Size(size_bytes),), root)
        next(observation, None)  # one that is only counted ends here
        try:
            with self.inside():
                result = yield
        except BaseException:  # re-raised
            observation.close()
            raise
        with suppress(StopIteration):
            waiting = waiting_in(first_of(result))  # None if it has been waited for
            observation.send(None if waiting is None else self.expect(waiting))
        return result

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Ignore the calls of other functions and operators in the ``with`` block: they are parts of this one."""
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def size_of(self, operation: str, tensors: Any, owner: Any) -> int:
        """Return the size of a collective in bytes: that of its input or of its output, whichever is larger."""
        is_larger = operation == "all_gather"
        return size_of(tensors) * (self.collectives.group_of(owner).size if is_larger else 1)

    def expect(self, waiting: Any, *, is_dropped: bool = False) -> Handle:
        """Return the handle whose wait is that for a tensor; if it `is_dropped` without one, there is no wait."""
        handle = self._handles[memory_of(waiting)] = Handle(waiting if is_dropped else None)
        if len(self._handles) > MOST_UNDER_WAY:
            del self._handles[next(iter(self._handles))]
        return handle


def waiting_in(result: Any) -> Any:
    """Return the tensor in the result of a function, which is an AsyncCollectiveTensor; None if it is another one."""
    return getattr(result, "elem", None)


def first_of(result: Any) -> Any:
    """Return the first of several results."""
    return result[0] if isinstance(result, (list, tuple)) and result else result


def is_traced() -> bool:
    """Return whether calls are only traced, with tensors that have no memory."""
    return bool(getattr(sys.modules.get(FUNCTIONAL), "_are_we_tracing", bool)())


def memory_of(tensor: Any) -> int:
    """Return a number that all views of the memory of a tensor share, as long as one of them exists."""
    return int(getattr(tensor, "elem", tensor).untyped_storage()._cdata)  # noqa: SLF001  # torch's own identity of it
