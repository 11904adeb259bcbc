"""The functions of Megatron-core that are observed; see record/frameworks/megatron.py for what each shows.

Only the schedules have required functions. Everything else comes in parts of its own, because the modules are imported
at different times, and many exist only in some versions: their absence is no fault.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

NAME = "Megatron-core"
SUPPORTED = "0.5-0.19"

PIPELINE = "megatron.core.pipeline_parallel"
SCHEDULES = f"{PIPELINE}.schedules"
P2P = f"{PIPELINE}.p2p_communication"
COMBINED = f"{PIPELINE}.combined_1f1b"
BRIDGE = f"{PIPELINE}.bridge_communicator"
DISTRIBUTED = "megatron.core.distributed"
OPTIMIZER = "megatron.core.optimizer"

TENSORS = ("tensor_send_prev", "tensor_recv_prev", "tensor_send_next", "tensor_recv_next")
OF_A_RUN = ("model", "num_microbatches", "forward_only")
OF_A_MERGED_CALL = ("f_model", "input_tensor", "b_model", "b_output_tensor", "b_output_tensor_grad")

BRIDGE_METHODS = (
    "send_forward",
    "recv_forward",
    "send_backward",
    "recv_backward",
    "send_forward_recv_backward",
    "send_backward_recv_forward",
)


def _part(trigger: str, *points: Point) -> Part:
    instrumentation = "stagescope.record.frameworks.megatron"
    return Part(NAME, "megatron-core", SUPPORTED, trigger, instrumentation, points)


def _optional(owner: str, name: str, hook: str, shows: str = "") -> Point:
    return Point(owner, name, hook, required=False, shows=shows)


PARTS = (
    _part(
        SCHEDULES,
        Point(SCHEDULES, "forward_step", "forward", ("model", "input_tensor")),
        Point(SCHEDULES, "backward_step", "backward", ("output_tensor", "output_tensor_grad")),
        _optional(SCHEDULES, "backward_step_multimodule", "backward"),
        Point(SCHEDULES, "forward_backward_no_pipelining", "schedule", OF_A_RUN),
        Point(SCHEDULES, "forward_backward_pipelining_without_interleaving", "schedule", OF_A_RUN),
        Point(SCHEDULES, "forward_backward_pipelining_with_interleaving", "schedule", OF_A_RUN),
        Point(P2P, "_batched_p2p_ops", "issue", TENSORS, required=False, shows="transfers in batches"),
        Point(P2P, "_p2p_ops", "issue", TENSORS, required=False, shows="transfers one by one"),
    ),
    _part(
        COMBINED,
        Point(
            COMBINED, "combined_forward_backward_step", "combined", OF_A_MERGED_CALL,
            required=False, shows="merged forwards and backwards",
        ),
        _optional(f"{PIPELINE}.utils:ScheduleNode", "forward", "node", "the start of merged forwards"),
        _optional(f"{PIPELINE}.utils:ScheduleNode", "backward", "node", "the start of merged backwards"),
    ),
    _part(
        BRIDGE,
        *(
            _optional(f"{BRIDGE}:BridgeCommunicator", name, "bridge", "transfers between the modules of a model")
            for name in BRIDGE_METHODS
        ),
    ),
    _part(
        f"{DISTRIBUTED}.finalize_model_grads",
        _optional(f"{DISTRIBUTED}.finalize_model_grads", "finalize_model_grads", "reduce", "gradient reduction"),
    ),
    *(
        _part(f"{DISTRIBUTED}.{module}", _optional(f"{DISTRIBUTED}.{module}:{owner}", "finish_grad_sync", "reduce"))
        for module, owner in (
            ("distributed_data_parallel", "DistributedDataParallel"),
            ("custom_fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"),  # 0.12 and 0.13
            ("fsdp.src.megatron_fsdp.megatron_fsdp", "MegatronFSDP"),  # since 0.14
            ("torch_fully_sharded_data_parallel", "TorchFullyShardedDataParallel"),  # since 0.19
        )
    ),
    *(
        _part(
            f"{DISTRIBUTED}.{module}",
            _optional(f"{DISTRIBUTED}.{module}:{owner}", "start_grad_sync", "reduce"),
            _optional(f"{DISTRIBUTED}.{module}:{owner}", "finish_grad_sync", "reduce"),
            _optional(f"{DISTRIBUTED}.{module}:{owner}", "start_param_sync", "gather"),
            _optional(f"{DISTRIBUTED}.{module}:{owner}", "finish_param_sync", "gather"),
        )
        for module, owner in (
            ("grad_buffer", "Bucket"),  # 0.5 and 0.6
            ("param_and_grad_buffer", "Bucket"),  # 0.7 and 0.8
            ("param_and_grad_buffer", "_ParamAndGradBucketGroup"),  # since 0.9
        )
    ),
    _part(
        f"{OPTIMIZER}.optimizer",
        *(
            _optional(f"{OPTIMIZER}.optimizer:{owner}", "step", "optimizer_step", "optimizer steps")
            for owner in ("MixedPrecisionOptimizer", "FP32Optimizer", "ChainedOptimizer")
        ),
    ),
    *(
        _part(f"{OPTIMIZER}.{module}", _optional(f"{OPTIMIZER}.{module}:{owner}", "step", "optimizer_step"))
        for module, owner in (
            ("distrib_optimizer", "DistributedOptimizer"),  # its own step in 0.6 and 0.7
            ("layer_wise_optimizer", "LayerWiseDistributedOptimizer"),  # its own step in 0.16 and 0.17
        )
    ),
    *(
        _part(
            module,
            _optional(module, "train_step", "train_step"),
            _optional(module, "training_log", "log"),
            _optional(module, "save_checkpoint_and_time", "checkpoint"),
            _optional(module, "evaluate", "evaluate"),
        )
        for module in ("megatron.training.training", "megatron.training")  # the latter until Megatron-LM 0.6
    ),
)  # fmt: skip
