"""Schedules that are not recorded. Their entries are observed only to name them.

They are built on Megatron's functions, of which Megatron's hooks would record a part: forwards without backwards, or
actions on the wrong stage. During these schedules no action is recorded at all.

Functions were looked up in MindSpeed's branches core_r0.6.0 to core_r0.18.0 (028de58c, July 2026).
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

CORE = "mindspeed.core"
MINDSPORE = "mindspeed.mindspore.core.pipeline_parallel"
NO_PIPELINING = "forward_backward_no_pipelining"
PIPELINING = "forward_backward_pipelining"
OF_MINDSPEED = {
    f"{CORE}.pipeline_parallel.ripipe_schedules": ("forward_backward_ripipe_pipelining",),
    f"{CORE}.pipeline_parallel.flexible_schedules": (
        f"{PIPELINING}_without_interleaving",
        f"{PIPELINING}_with_interleaving_patch",
        f"{PIPELINING}_with_interleaving_nano_pipe",
    ),
    f"{CORE}.pipeline_parallel.multiparameter_schedules": (f"{PIPELINING}_with_interleaving",),
    f"{CORE}.multi_modal.dist_train.dist_schedules": (f"{PIPELINING}_without_interleaving",),
    "mindspeed.multi_modal.dist_train.pipeline_parallel.dist_schedules": (
        f"{PIPELINING}_without_interleaving",
    ),
    f"{CORE}.transformer.moe.moe_feature.fb_overlap.no_pipelining_schedules": (NO_PIPELINING,),
    f"{CORE}.transformer.moe.moe_feature.fb_overlap.vpp_schedules": (f"{PIPELINING}_with_interleaving",),
    f"{CORE}.pipeline_parallel.fb_overlap.vpp_schedules": (f"{PIPELINING}_with_interleaving",),
    f"{CORE}.tensor_parallel.tp_2d.schedules_2d": (f"{PIPELINING}_with_interleaving_tp2d",),
    f"{CORE}.performance.auto_pipeline_perf.schedules": ("optimized_forward_backward_pipelining",),
    f"{MINDSPORE}.schedules": (
        NO_PIPELINING,
        f"{PIPELINING}_with_interleaving",
        f"{PIPELINING}_without_interleaving",
    ),
    f"{MINDSPORE}.seq1f1b.schedules": (f"{PIPELINING}_without_interleaving_seq1f1b",),
    f"{MINDSPORE}.dualpipev.dualpipev_schedules": (f"{PIPELINING}_with_cutinhalf",),
}


def _part(framework: str, supported: str, module: str, functions: tuple[str, ...]) -> Part:
    points = tuple(Point(module, name, "schedule", required=False) for name in functions)
    instrumentation = "stagescope.record.frameworks.unrecorded"
    return Part(framework, framework.lower(), supported, module, instrumentation, points)


PARTS = tuple(_part("MindSpeed", "none", *entries) for entries in OF_MINDSPEED.items())
