"""The gradients of functional collectives in torch before 2.11, which C++ code computes.

The gradient of an operator of ``torch.ops._c10d_functional_autograd`` issues its collective and waits for it at once
(torch/csrc/distributed/c10d/Functional.cpp, "do an explicit wait to avoid cuda stream issues"), so the collective
lasts as long as the node of the autograd graph. Two hooks of the node see its begin and its end. They exist only where
such an operator was called, and return nothing, so gradients stay as they are.

From torch 2.11 on, these gradients are Python functions that call the operators which torch_operators.py observes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.collectives import Size

if TYPE_CHECKING:
    from stagescope.record.frameworks.collectives import Begun, Collectives
    from stagescope.record.hooks import Guard


def observe_gradient(
    result: Any, collectives: Collectives, guard: Guard, collective: tuple[str, Any, int]
) -> None:
    """Observe the gradient of an operator by the `result` of a call, unless it is a Python function.

    `collective` is what the gradient issues: operation, process group and size in bytes.
    """
    import torch  # already imported by the training

    node = getattr(result, "grad_fn", None)
    if node is None or isinstance(node, torch.autograd.function.BackwardCFunction):
        return
    gradient = Gradient(collectives, *collective)
    node.register_prehook(guard.callback(gradient.begin))
    node.register_hook(guard.callback(gradient.end))


class Gradient:
    """The collective in one node of the graph, which may be computed repeatedly."""

    def __init__(self, collectives: Collectives, operation: str, owner: Any, size_bytes: int) -> None:
        self._collectives = collectives
        self._issue = operation, owner, (Size(size_bytes),)
        self._begun: list[Begun | None] = []

    def begin(self, gradients: Any) -> None:
        """Begin the collective, before the node."""
        del gradients
        self._begun.append(self._collectives.begin(*self._issue))

    def end(self, *gradients: Any) -> None:
        """End it, after the node."""
        del gradients
        begun = self._begun.pop()
        if begun is not None:
            self._collectives.end(begun, None)
