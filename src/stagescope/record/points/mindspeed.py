"""The functions of DualPipeV that the recorder needs, in MindSpeed and in FlagScale's copy of it.

Signatures were read in MindSpeed from branch core_r0.8.0 to branch core_r0.18.0 (028de58c, July 2026), which are equal,
and in FlagScale da4935ec. FlagScale has another name for the schedule and computes each weight gradient inside the
backward or the pair that it belongs to, so it has no WeightGradStore.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

MODULE_OF_MINDSPEED = "mindspeed.core.pipeline_parallel.dualpipev.dualpipev_schedules"
MODULE_OF_FLAGSCALE = "flagscale.train.dualpipev.dualpipev_schedules"
STORES = (
    "mindspeed.core.transformer.moe.moe_feature.fb_overlap.modules.weight_grad_store:WeightGradStore",
    "mindspeed.core.pipeline_parallel.fb_overlap.modules.weight_grad_store:WeightGradStore",  # core_r0.8.0
)
STATE = "megatron.core.parallel_state"
PROFILER = "torch_npu.profiler.profiler:profile"
TRANSFERS = (
    "send_forward",
    "recv_forward",
    "send_backward",
    "recv_backward",
    "send_forward_recv_forward",
    "send_forward_recv_slave_forward",
)
MESSAGES = "sends and receives"
MARKS = "marks for msprof-analyze in the profiler of torch_npu"


def _actions(module: str, run: str) -> tuple[Point, ...]:
    forward = ("model_chunk_id", "current_microbatch")
    return (
        Point(module, run, "run", ("num_microbatches", "forward_only")),
        Point(module, "forward_step_with_model_graph", "forward", (*forward, "extra_block_kwargs")),
        Point(module, "forward_step_no_model_graph", "forward", forward),
        Point(module, "backward_step_with_model_graph", "backward", ("output_tensor", "model_graph")),
        Point(module, "backward_step", "backward", ("output_tensor",)),
        Point(STATE, "get_pipeline_model_parallel_rank"),
        Point(STATE, "get_pipeline_model_parallel_world_size"),
    )


def _transfers(module: str) -> tuple[Point, ...]:
    sides = ("tensor_send_next", "tensor_send_prev")
    return (
        *(Point(module, name, "transfer", required=False, shows=MESSAGES) for name in TRANSFERS),
        Point(module, "_communicate", "communicate", sides, required=False, shows=MESSAGES),
        Point(STATE, "get_pipeline_model_parallel_next_rank"),
        Point(STATE, "get_pipeline_model_parallel_prev_rank"),
    )


MINDSPEED = Part(
    framework="MindSpeed",
    distribution="mindspeed",
    supported="core_r0.8.0-core_r0.18.0",
    trigger=MODULE_OF_MINDSPEED,
    instrumentation="stagescope.record.frameworks.mindspeed",
    points=(
        *_actions(MODULE_OF_MINDSPEED, "forward_backward_pipelining_with_cutinhalf"),
        *(Point(store, "pop", "pop", any_of="store") for store in STORES),
        *_transfers(MODULE_OF_MINDSPEED),
        Point(PROFILER, "start", "profiler_started", required=False, shows=MARKS),
        Point(PROFILER, "stop", "profiler_stopped", required=False, shows=MARKS),
    ),
)

FLAGSCALE = Part(
    framework="FlagScale",
    distribution="flagscale",
    supported="da4935ec",
    trigger=MODULE_OF_FLAGSCALE,
    instrumentation="stagescope.record.frameworks.mindspeed",
    points=(
        *_actions(MODULE_OF_FLAGSCALE, "forward_backward_pipelining_with_dualpipev"),
        *_transfers(MODULE_OF_FLAGSCALE),
    ),
)

PARTS = (MINDSPEED, FLAGSCALE)
