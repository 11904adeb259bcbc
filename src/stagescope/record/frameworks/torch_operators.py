"""The operators of functional collectives, called by compiled code and by the gradients of functional collectives.

Code that torch.compile has generated contains ``torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')``, and
later ``wait_tensor.default(buf0)`` (torch 2.5 to 2.15, torch/_inductor/codegen/wrapper.py); graphs of other compilers
hold the same objects. Each object calls the function that it keeps as ``_op`` (torch/_ops.py). That function is
observed, so that the object stays the one that the tables of the compiler know. The Python functions of
torch.distributed._functional_collectives, and from torch 2.11 on those of their gradients, call another object, that of
all overloads; its function is observed as well.

In earlier versions the gradient of a functional collective is C++ code: see torch_gradients.py. Sends and receives:
operator_transfers.py. The compiler calls the operators too, with tensors that have no memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.frameworks.operator_transfers import OperatorTransfers
from stagescope.record.frameworks.torch_gradients import observe_gradient
from stagescope.record.hooks import observed
from stagescope.record.patching import MARK
from stagescope.record.points.torch_functional import (
    DIFFERENTIABLE,
    DIFFERENTIABLE_NAMESPACE,
    NAMESPACE,
    OPERATORS,
    TRANSFERS,
    WAIT,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from stagescope.record.calls import Call
    from stagescope.record.frameworks.torch_functional import Instrumentation
    from stagescope.record.hooks import Guard, Observer, Predicate
    from stagescope.record.patching import Patches

    Observation = Generator[None, Any, Any]

FUNCTION = "_op"
"""The attribute of an operator that has its function."""


class Issue(NamedTuple):
    """A collective that is issued: what it is, of which tensors, in which process group, and from which rank of it."""

    operation: str
    tensors: Any
    owner: Any
    root: int | None = None


class Function:
    """Takes the place of the function of an operator, and lets it be observed.

    It has the same hash, because that is the hash of the operator, which is a key of the tables of the compiler.
    """

    def __init__(self, original: Any, observed: Any) -> None:
        self._original = original
        self._observed = observed
        self._hash = hash(original)
        setattr(self, MARK, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the observed function."""
        return self._observed(*args, **kwargs)

    def __hash__(self) -> int:
        """Return the hash of the function."""
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is this object."""
        return self is other

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the function."""
        return getattr(self._original, name)


class Operators:
    """The observers of the operators."""

    def __init__(self, functional: Instrumentation) -> None:
        self._functional = functional
        self._transfers = OperatorTransfers(functional)

    def install(self, guard: Guard, patches: Patches) -> None:
        """Observe the operators that this version of torch has."""
        import torch  # already imported by the training

        for namespace, name, observer, ignores in self._observers(guard):
            every = getattr(getattr(torch.ops, namespace), name, None)
            for operator in (every, getattr(every, "default", None)):
                if FUNCTION not in getattr(operator, "__dict__", ()):
                    continue
                original = vars(operator)[FUNCTION]
                function = Function(original, observed(original, observer, guard, ignores))
                patches.replace(operator, FUNCTION, function)

    def _observers(self, guard: Guard) -> Iterator[tuple[str, str, Observer, Predicate]]:
        """Yield the operators, each with its namespace, its observer, and which of its calls are ignored."""
        for name, operation in OPERATORS.items():
            yield NAMESPACE, name, partial(self.collective, operation), self._ignores
        for name in TRANSFERS:
            yield NAMESPACE, name, partial(self._transfers.observe, name), self._ignores_transfer
        for name in DIFFERENTIABLE:
            yield (
                DIFFERENTIABLE_NAMESPACE,
                name,
                partial(self.differentiable, guard, name),
                self._functional.is_compiling,
            )
        yield NAMESPACE, WAIT, self.wait, self._functional.ignores_wait

    def collective(self, operation: str, call: Call) -> Observation:
        """Observe an operator that issues a collective and returns a tensor or several."""
        owner = process_group_of(call.keywords.get("group_name", call.arguments[-1]))
        root = call.arguments[1] if operation == "broadcast" else None
        return (yield from self._functional.observe(Issue(operation, call.arguments[0], owner, root), itself))

    def differentiable(self, guard: Guard, name: str, call: Call) -> Observation:
        """Observe an operator that issues a collective, and whose gradient issues one too."""
        if self._functional.is_inside:  # of a function that is observed
            result = yield
        else:
            result = yield from self.collective(OPERATORS[name], call)
        owner = process_group_of(call.keywords.get("group_name", call.arguments[-1]))
        size_bytes = self._functional.size_of(OPERATORS[name], call.arguments[0], owner)
        observe_gradient(
            result, self._functional.collectives, guard, (DIFFERENTIABLE[name], owner, size_bytes)
        )
        return result

    def wait(self, call: Call) -> Observation:
        """Observe the operator that waits for a result, its only argument."""
        return self._functional.observe_wait(call.arguments[0])

    def _ignores(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a call is part of a function that is observed, or has tensors without memory."""
        return self._functional.ignores_collective(arguments) or without_memory(arguments)

    def _ignores_transfer(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a transfer is not recorded, or has tensors without memory."""
        is_ignored = self._functional.ignores_collective(arguments) or self._transfers.ignores(arguments)
        return is_ignored or without_memory(arguments[3:] if isinstance(arguments[0], list) else arguments)


def without_memory(arguments: tuple[Any, ...]) -> bool:
    """Return whether the tensors that come first are not plain ones, but those of a compiler or a subclass.

    The latter calls the operator again, with plain ones.
    """
    import torch  # as above

    tensors = arguments[0] if arguments else None
    first: Any = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    return type(first) not in {torch.Tensor, torch.nn.Parameter} or first.device.type == "meta"


def itself(result: Any) -> Any:
    """Return the result of an operator, which is the tensor that is waited for."""
    return result


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
