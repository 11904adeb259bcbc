"""What is observed of paddle.distributed: methods of ProcessGroup, through which all collectives and transfers go.

Read in paddlepaddle 2.6.2 to 3.3.1: paddle/distributed/communication, paddle/distributed/parallel.py, and in
paddle/distributed/fleet: utils, meta_optimizers/dygraph_optimizer and meta_parallel/sharding.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

FRAMEWORK = "Paddle collectives"
GROUPS = "paddle.distributed.communication.group"
GROUP = "paddle.base.libpaddle:ProcessGroup"
GRADIENTS = "paddle.distributed.fleet.utils.hybrid_parallel_util"
BUFFERS = "paddle.distributed.fleet.utils.tensor_fusion_helper"
SHARDING = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.dygraph_sharding_optimizer"
SHARDED = "paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage2"
SLICED = "paddle.distributed.fleet.meta_parallel.sharding.group_sharded_stage3"
REPLICAS = "paddle.distributed.parallel"
REDUCER = "paddle.base.libpaddle:EagerReducer"

_CALC_STREAM = "_on_calc_stream"
_NAMES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_partial": "all_gather",
    "all_to_all": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_all_tensor": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "scatter": "scatter",
    "scatter_tensor": "scatter",
}
OPERATIONS = {
    **_NAMES,
    **{f"{name}{_CALC_STREAM}": operation for name, operation in _NAMES.items()},
    "allreduce": "all_reduce",
    "alltoall": "all_to_all",
    "alltoall_single": "all_to_all",
    "gather": "gather",
    "barrier": "barrier",
}
"""The methods of ProcessGroup and the collective that each one is. Versions of Paddle have some of them."""

ROOTED = {"broadcast": 1, "reduce": 1, "scatter": 2, "gather": 2}
"""Collectives with a root, and its place after the tensor among the arguments: a rank in the group."""

TRANSFERS = tuple(
    f"{name}{way}{stream}"
    for name in ("send", "recv")
    for way in ("", "_partial")
    for stream in ("", _CALC_STREAM)
)
"""Its methods that move a tensor between two ranks."""


def _part(trigger: str, *points: Point) -> Part:
    instrumentation = "stagescope.record.frameworks.paddle_distributed"
    return Part(FRAMEWORK, "paddlepaddle", "2.6.2-3.3.1", trigger, instrumentation, points)


def _optional(owner: str, name: str, hook: str, ignores: str = "") -> Point:
    return Point(owner, name, hook, required=False, ignores=ignores)


PARTS = (
    _part(
        GROUPS,
        *(_optional(GROUP, name, "collective", "counts_collective") for name in OPERATIONS),
        *(_optional(GROUP, name, "transfer", "ignores_transfer") for name in TRANSFERS),
        _optional(GROUPS, "destroy_process_group", "leave"),
    ),
    _part(
        GRADIENTS,
        _optional(GRADIENTS, "fused_allreduce_gradients", "reduce"),
        _optional(GRADIENTS, "fused_allreduce_gradients_with_group", "reduce"),
    ),
    _part(
        BUFFERS,
        _optional(f"{BUFFERS}:FusedCommBuffer", "comm_grads", "reduce"),
        _optional(f"{BUFFERS}:FusedCommBuffer", "_comm_grads", "reduce"),
    ),
    _part(
        SHARDING,
        _optional(f"{SHARDING}:DygraphShardingOptimizer", "reduce_gradients", "reduce"),
        _optional(f"{SHARDING}:DygraphShardingOptimizerV2", "reduce_gradients", "reduce"),
    ),
    _part(
        SHARDED,
        _optional(f"{SHARDED}:GroupShardedStage2", "__init__", "shard"),
        _optional(f"{SHARDED}:GroupShardedStage2", "_dp_allreduce", "reduce"),
    ),
    _part(
        SLICED,
        _optional(f"{SLICED}:GroupShardedStage3", "_register_backward_hooks", "slice"),
        _optional(f"{SLICED}:GroupShardedStage3", "_update_params", "reduce"),
    ),
    _part(
        REPLICAS,
        _optional(f"{REPLICAS}:DataParallel", "init_reducer", "replicate"),
        _optional(REDUCER, "prepare_for_backward", "prepare_reduction"),
    ),
)  # fmt: skip
