"""The operators of functional collectives, which code that torch.compile has generated calls by name.

Such code contains ``torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')``, and later
``wait_tensor.default(buf0)`` (torch 2.5 to 2.15, torch/_inductor/codegen/wrapper.py); graphs of other compilers hold
the same objects. Each object calls the function that it keeps as ``_op`` (torch/_ops.py). That function is observed, so
that the object stays the one that the tables of the compiler know. The Python functions of
torch.distributed._functional_collectives call another object, that of all overloads.

The compiler calls the operators too, with tensors that have no memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.hooks import observed
from stagescope.record.patching import MARK
from stagescope.record.points.torch_functional import NAMESPACE, OPERATORS, WAIT

if TYPE_CHECKING:
    from collections.abc import Generator

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

    def install(self, guard: Guard, patches: Patches) -> None:
        """Observe the operators that this version of torch has."""
        import torch  # already imported by the training

        for name in (*OPERATORS, WAIT):
            operator = getattr(getattr(getattr(torch.ops, NAMESPACE), name, None), "default", None)
            if FUNCTION not in getattr(operator, "__dict__", ()):
                continue
            observer: Observer = self.wait if name == WAIT else partial(self.collective, OPERATORS[name])
            ignores: Predicate = self._functional.ignores_wait if name == WAIT else self._ignores
            original = vars(operator)[FUNCTION]
            function = Function(original, observed(original, observer, guard, ignores))
            patches.replace(operator, FUNCTION, function)

    def collective(self, operation: str, call: Call) -> Observation:
        """Observe an operator that issues a collective and returns a tensor or several."""
        owner = process_group_of(call.keywords.get("group_name", call.arguments[-1]))
        root = call.arguments[1] if operation == "broadcast" else None
        return (yield from self._functional.observe(Issue(operation, call.arguments[0], owner, root), itself))

    def wait(self, call: Call) -> Observation:
        """Observe the operator that waits for a result, its only argument."""
        return self._functional.observe_wait(call.arguments[0])

    def _ignores(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a call is part of a function that is observed, or has tensors without memory."""
        return self._functional.ignores_collective(arguments) or not has_memory(arguments[0])


def has_memory(tensors: Any) -> bool:
    """Return whether tensors are plain ones and not those of a compiler."""
    import torch  # as above

    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    return type(first) in {torch.Tensor, torch.nn.Parameter} and first.device.type != "meta"


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
