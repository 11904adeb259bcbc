"""What is observed in torch.distributed and its wrappers for data parallelism (torch 2.5.0 to 2.15.0).

All collectives that Python issues go through the methods of ``ProcessGroup``, whatever they are called by:
``dist.all_reduce``, a framework's own wrapper, or a name imported earlier. The functions of torch.distributed are left
alone, because torch compares some of them by identity (``P2POp``, the coalescing manager, torch.compile).
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

FRAMEWORK = PACKAGE = "torch.distributed"
C10D = "torch.distributed.distributed_c10d"
GROUP = "torch._C._distributed_c10d:ProcessGroup"
REDUCER = "torch._C._distributed_c10d:Reducer"
DDP = "torch.nn.parallel.distributed"
PARAM_GROUPS = (
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
    "torch.distributed._composable.fsdp._fsdp_param_group",  # torch 2.5
)

OPERATIONS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_single_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}
"""The methods of ``ProcessGroup`` and the collective that each one is. Versions of torch have some of them."""

ROOTED = {"broadcast": 2, "reduce": 2, "gather": 3, "scatter": 3}
"""Collectives with a root, and its place among the arguments of the method where it is passed without options."""

TRANSFERS = ("send", "recv", "recv_anysource")
"""Its methods that move a tensor between two ranks."""

SUPPORTED = "2.5-2.15"
INSTRUMENTATION = "stagescope.record.frameworks.torch_distributed"

PARTS = (
    Part(
        FRAMEWORK,
        "torch",
        SUPPORTED,
        C10D,
        INSTRUMENTATION,
        (
            *(
                Point(GROUP, name, "collective", required=name == "allreduce", ignores="counts_only")
                for name in OPERATIONS
            ),
            *(
                Point(
                    GROUP,
                    name,
                    "transfer",
                    required=False,
                    shows="transfers outside of schedules",
                )
                for name in TRANSFERS
            ),
            Point(
                GROUP, "_start_coalescing", "begin_coalescing", required=False, ignores="ignores_coalescing"
            ),
            Point(GROUP, "_end_coalescing", "end_coalescing", required=False, ignores="ignores_coalescing"),
            Point(C10D, "destroy_process_group", "leave", required=False),
        ),
    ),
    Part(
        FRAMEWORK,
        "torch",
        SUPPORTED,
        DDP,
        INSTRUMENTATION,
        (
            Point(f"{DDP}:DistributedDataParallel", "__init__", "replicate"),
            Point(REDUCER, "prepare_for_backward", "prepare_reduction", required=False),
        ),
    ),
    *(
        Part(
            FRAMEWORK,
            "torch",
            SUPPORTED,
            module,
            INSTRUMENTATION,
            (
                Point(f"{module}:FSDPParamGroup", "post_backward", "shard_reduction", required=False),
                Point(f"{module}:FSDPParamGroup", "unshard", "unshard", required=False),
            ),
        )
        for module in PARAM_GROUPS
    ),
)
