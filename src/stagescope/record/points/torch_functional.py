"""The functional collectives of torch that are observed, which DTensor and its parallel styles use (torch 2.5 to 2.15).

torch.distributed._functional_collectives runs its collectives in C++, so they do not go through the methods of
``ProcessGroup`` that points/torch_distributed.py declares.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

FRAMEWORK = "torch functional collectives"
FUNCTIONAL = "torch.distributed._functional_collectives"
DTENSOR = "torch.distributed.tensor._collective_utils"

OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_gather_single": "all_gather",
    "all_gather_single_autograd": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "all_gather_tensor": "all_gather",
    "all_gather_tensor_autograd": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_autograd": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_autograd": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_to_all_single_autograd": "all_to_all",
    "broadcast": "broadcast",
    "shard_dim_alltoall": "all_to_all",
}
"""The functions, and the collective that each one is. Versions of torch have some of them, and some call others."""

NAMESPACE, DIFFERENTIABLE_NAMESPACE = "_c10d_functional", "_c10d_functional_autograd"
OPERATORS = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
"""The operators of ``torch.ops._c10d_functional`` that compiled code calls, and the collective that each one is. Their
last argument is the group, by name or, from torch 2.13 on, itself; the first one is a tensor or several.
"""

DIFFERENTIABLE = {
    "all_gather_into_tensor": "reduce_scatter",
    "reduce_scatter_tensor": "all_gather",
    "all_to_all_single": "all_to_all",
}
"""The operators of ``torch.ops._c10d_functional_autograd``, and the collective that each one issues in its backward."""

TRANSFERS = ("isend", "irecv", "batch_p2p_ops")
"""The operators that move a tensor between two ranks, or several (torch 2.12 to 2.15)."""

WAIT = "wait_tensor"
"""The operator with which compiled code waits for the result of another one."""


def _part(trigger: str, *points: Point) -> Part:
    return Part(
        FRAMEWORK, "torch", "2.5-2.15", trigger, "stagescope.record.frameworks.torch_functional", points
    )


PARTS = (
    _part(
        FUNCTIONAL,
        *(
            Point(
                FUNCTIONAL,
                name,
                "collective",
                reads=("group", "src") if name == "broadcast" else ("group",),
                required=name == "all_reduce",
                ignores="ignores_collective",
            )
            for name in OPERATIONS
            if name != "shard_dim_alltoall"
        ),
        Point(
            FUNCTIONAL,
            "wait_tensor",
            "wait",
            reads=("tensor",),
            required=False,
            shows="waits for functional collectives",
            ignores="ignores_wait",
        ),
    ),
    _part(
        DTENSOR,
        Point(
            DTENSOR,
            "shard_dim_alltoall",
            "change_dimension",
            reads=("mesh", "mesh_dim"),
            required=False,
            ignores="ignores_collective",
        ),
    ),
)
