"""Every schedule, action and module in the table.

A release with another one fails the tests until somebody has looked at it and added it here. How each schedule is
recorded is in tests/data/compatibility/coverage.toml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .table import Snapshot

TORCH = "torch.distributed.pipelining"
MEGATRON = "megatron.core.pipeline_parallel"
DEEPSPEED = "deepspeed.runtime.pipe"
COLOSSALAI = "colossalai.pipeline.schedule"
FLEET = "paddle.distributed.fleet.meta_parallel"
STATIC = "paddle.distributed.passes.pipeline_scheduler_pass"
PRIMUS_MEGATRON = "primus.backends.megatron.core.pipeline_parallel"
PRIMUS = "primus.core.pipeline_parallel.scheduler.algorithms"

SCHEDULES: dict[str, frozenset[str]] = {
    "torch": frozenset(
        f"{TORCH}.schedules:{name}"
        for name in (
            "Schedule1F1B",
            "ScheduleDualPipeV",
            "ScheduleFlexibleInterleaved1F1B",
            "ScheduleGPipe",
            "ScheduleInterleaved1F1B",
            "ScheduleInterleavedZeroBubble",
            "ScheduleLoopedBFS",
            "ScheduleZBVZeroBubble",
            "_PipelineScheduleRuntime",
            "_ScheduleForwardOnly",
        )
    ),
    "megatron-core": frozenset(
        f"{MEGATRON}.{path}"
        for path in (
            "schedules:forward_backward_no_pipelining",
            "schedules:forward_backward_pipelining_without_interleaving",
            "schedules:forward_backward_pipelining_with_interleaving",
            "combined_1f1b:combined_1f1b_schedule_for_no_pipelining",
            "combined_1f1b:combined_1f1b_schedule_for_interleaved_pipelining",
            "hybrid_cp_schedule:hybrid_context_parallel_forward_backward",
        )
    ),
    "deepspeed": frozenset(
        f"{DEEPSPEED}.schedule:{name}"
        for name in ("TrainSchedule", "DataParallelSchedule", "InferenceSchedule", "DualPipeVSchedule")
    ),
    "colossalai": frozenset(
        f"{COLOSSALAI}.{path}"
        for path in (
            "one_f_one_b:OneForwardOneBackwardSchedule",
            "interleaved_pp:InterleavedSchedule",
            "zero_bubble_pp:ZeroBubbleVPipeScheduler",
            "generate:GenerateSchedule",
        )
    ),
    "paddlepaddle": frozenset(
        (
            f"{FLEET}.pipeline_parallel:PipelineParallel",
            f"{FLEET}.pipeline_parallel:NoPipelineParallel",
            f"{FLEET}.pipeline_parallel:PipelineParallelWithInterleave",
            f"{FLEET}.pipeline_parallel:PipelineParallelWithInterleaveFthenB",
            f"{FLEET}.pipeline_parallel:VPPFhenBInBalancedMemory",
            f"{FLEET}.dualpipev:DualPipeVParallel",
            f"{STATIC}.pipeline_1f1b:Pipeline1F1BPass",
            f"{STATIC}.pipeline_eager_1f1b:PipelineEager1F1BPass",
            f"{STATIC}.pipeline_fthenb:PipelineFThenBPass",
            f"{STATIC}.pipeline_vpp:PipelineVirtualPipelinePass",
            f"{STATIC}.pipeline_zero_bubble:PipelineZeroBubblePipelinePass",
            f"{STATIC}.pipeline_zero_bubble:PipelineZeroBubbleVirtualPipelinePass",
        )
    ),
    "mindspeed": frozenset(
        f"mindspeed.{path}"
        for path in (
            "core.multi_modal.dist_train.dist_schedules:forward_backward_pipelining_without_interleaving",
            "core.performance.auto_pipeline_perf.schedules:optimized_forward_backward_pipelining",
            "core.pipeline_parallel.dualpipev.dualpipev_schedules:forward_backward_pipelining_with_cutinhalf",
            "core.pipeline_parallel.flexible_schedules:forward_backward_pipelining_with_interleaving_patch",
            "core.pipeline_parallel.flexible_schedules:forward_backward_pipelining_without_interleaving",
            "core.pipeline_parallel.multiparameter_schedules:forward_backward_pipelining_with_interleaving",
            "core.pipeline_parallel.ripipe_schedules:forward_backward_ripipe_pipelining",
            "core.tensor_parallel.tp_2d.schedules_2d:forward_backward_pipelining_with_interleaving_tp2d",
            "core.transformer.moe.moe_feature.fb_overlap.no_pipelining_schedules:forward_backward_no_pipelining",
            "core.transformer.moe.moe_feature.fb_overlap.vpp_schedules:forward_backward_pipelining_with_interleaving",
            "mindspore.core.pipeline_parallel.seq1f1b.schedules:forward_backward_pipelining_without_interleaving_seq1f1b",
        )
    ),
    "flagscale": frozenset(
        ["flagscale.train.dualpipev.dualpipev_schedules:forward_backward_pipelining_with_dualpipev"]
    ),
    "primus": frozenset(
        (
            f"{PRIMUS_MEGATRON}.schedules:get_primus_pipeline_parallel_fwd_backward_func",
            f"{PRIMUS_MEGATRON}.zerobubble.runtime:get_zero_bubble_forward_backward_func",
            f"{PRIMUS}.basic_1f1b:Schedule1F1B",
            f"{PRIMUS}.interleaved_1f1b:ScheduleInterleaved1F1B",
            f"{PRIMUS}.zbv_formatted:ScheduleZBVFormatted",
            f"{PRIMUS}.zbv_greedy:ScheduleZBVGreedy",
            f"{PRIMUS}.zerobubble:ScheduleZeroBubble",
            f"{PRIMUS}.zerobubble_heuristic:ScheduleZeroBubbleHeuristic",
        )
    ),
}
SCHEDULES["megatron-lm"] = SCHEDULES["megatron-core"]

NO_SCHEDULES: dict[str, frozenset[str]] = {
    "torch": frozenset(
        (
            f"{TORCH}.schedules:PipelineScheduleMulti",
            f"{TORCH}.schedules:PipelineScheduleSingle",
            f"{TORCH}.stage:PipelineStage",
            f"{TORCH}.stage:_PipelineStage",
        )
    ),
    "megatron-core": frozenset([f"{MEGATRON}.combined_1f1b:combined_forward_backward_step"]),
    "deepspeed": frozenset(
        (
            f"{DEEPSPEED}.dualpipev:DualPipeVEngine",
            *(
                f"{DEEPSPEED}.schedule:{instruction}"
                for instruction in (
                    "BackwardPass",
                    "BufferOpInstruction",
                    "CommitP2P",
                    "ForwardPass",
                    "LoadMicroBatch",
                    "OptimizerStep",
                    "RecvActivation",
                    "RecvGrad",
                    "ReduceGrads",
                    "ReduceTiedGrads",
                    "SendActivation",
                    "SendGrad",
                )
            ),
        )
    ),
    "paddlepaddle": frozenset(
        (
            f"{FLEET}.segment_parallel:SegmentParallel",
            f"{FLEET}.sharding_parallel:ShardingParallel",
            f"{FLEET}.tensor_parallel:TensorParallel",
            f"{STATIC}.pipeline_zero_bubble:PipelineZeroBubbleBase",
        )
    ),
    "mindspeed": frozenset(
        [
            "mindspeed.core.tensor_parallel.tp_2d.adaptor:mindspeed_forward_backward_pipelining_with_interleaving_tp2d"
        ]
    ),
    "primus": frozenset([f"{PRIMUS}.base:VFoldScheduleAlgo"]),
}
"""Base classes, stages, instructions, other kinds of parallelism: what the table lists beside the schedules."""

NO_SCHEDULES["megatron-lm"] = NO_SCHEDULES["megatron-core"]

ACTIONS: dict[str, frozenset[str]] = {
    "torch": frozenset(
        [
            "BACKWARD",
            "BACKWARD_INPUT",
            "BACKWARD_WEIGHT",
            "FORWARD",
            "FULL_BACKWARD",
            "OVERLAP_F_B",
            "RECV_B",
            "RECV_F",
            "REDUCE_GRAD",
            "RESHARD",
            "SEND_B",
            "SEND_F",
            "UNSHARD",
            "WAIT_REDUCE_GRAD",
            "WAIT_SEND_B",
            "WAIT_SEND_F",
            "WEIGHT",
        ]
    ),
    "paddlepaddle": frozenset(["BACKWARD_BEGIN", "BACKWARD_END", "FORWARD_BEGIN", "FORWARD_END"]),
}
"""The members of the enums of actions."""

MODULES: dict[str, frozenset[str]] = {
    "torch": frozenset(
        f"{TORCH}{name}"
        for name in (
            "",
            "._IR",
            "._backward",
            "._debug",
            "._p2p",
            "._recv_buffers",
            "._schedule_visualizer",
            "._unflatten",
            "._utils",
            ".microbatch",
            ".schedules",
            ".stage",
        )
    ),
    "megatron-core": frozenset(
        f"{MEGATRON}{name}"
        for name in (
            "",
            ".bridge_communicator",
            ".combined_1f1b",
            ".fine_grained_activation_offload",
            ".hybrid_cp_schedule",
            ".multimodule_communicator",
            ".p2p_communication",
            ".schedules",
            ".utils",
        )
    ),
    "deepspeed": frozenset(
        f"{DEEPSPEED}{name}"
        for name in ("", ".dualpipev", ".engine", ".module", ".p2p", ".schedule", ".topology")
    ),
    "colossalai": frozenset(
        f"colossalai.pipeline{name}"
        for name in (
            "",
            ".p2p",
            ".schedule",
            ".schedule._utils",
            ".schedule.base",
            ".schedule.generate",
            ".schedule.interleaved_pp",
            ".schedule.one_f_one_b",
            ".schedule.v_schedule",
            ".schedule.zero_bubble_pp",
            ".stage_manager",
            ".weight_grad_store",
        )
    ),
    "paddlepaddle": frozenset(
        f"{FLEET}.{name}"
        for name in (
            "dualpipev",
            "parallel_layers",
            "parallel_layers.mp_layers",
            "parallel_layers.pp_layers",
            "parallel_layers.random",
            "parallel_layers.spec_utils",
            "pipeline_hooks",
            "pipeline_parallel",
            "pp_utils",
            "pp_utils.batch_comm_helper",
            "pp_utils.forward_backward_overlap_utils",
            "pp_utils.four_directions_p2p_communication",
            "pp_utils.p2p_communication",
            "pp_utils.profiler_helper",
            "pp_utils.utils",
        )
    ),
}
"""The modules of released packages that could contain a schedule. Repositories at a pinned commit do not change."""


MODULES["megatron-lm"] = MODULES["megatron-core"]


def unknown(source: str, snapshot: Snapshot) -> list[str]:
    """Return one line for each schedule, action and module of a release that is not listed here."""
    known = {
        "schedule": SCHEDULES.get(source, frozenset()) | NO_SCHEDULES.get(source, frozenset()),
        "action": ACTIONS.get(source, frozenset()),
        "module": MODULES.get(source, frozenset()),
    }
    found = {"schedule": snapshot.schedules, "action": snapshot.actions, "module": snapshot.modules}
    return [f"unknown {kind}: {each}" for kind in known for each in sorted({*found[kind]} - known[kind])]
