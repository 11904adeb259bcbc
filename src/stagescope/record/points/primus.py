"""The functions of Primus' own schedules that the recorder needs: its zero-bubble runtime, and PrimusPipe.

Both replace Megatron's ``get_forward_backward_func`` and call Megatron's forward and backward under names that they
have imported. Signatures were read in Primus v0.3.0 to v26.5.1 and fd1eeabb (August 2026); PrimusPipe exists since
v0.6.0, its combined handler since v0.7.0.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

PACKAGE = "primus.backends.megatron.core.pipeline_parallel"
RUNTIME = f"{PACKAGE}.zerobubble.runtime"
ITERATION = f"{RUNTIME}:TrainingIteration"
GRADIENTS = f"{PACKAGE}.zerobubble.zbpp_utils:WeightGradStore"
LAUNCHER = f"{PACKAGE}.primuspipe.pipeline_launcher"
HANDLERS = f"{PACKAGE}.primuspipe.handlers"
GRADIENT_CACHE = "primus.core.pipeline_parallel.handler.wgrad_handler:WGradRunningCache"
STATE = "megatron.core.parallel_state"
OF_A_MERGED_CALL = ("f_model", "b_model", "current_microbatch", "f_model_chunk_id", "b_output_tensor")
MERGED = "merged forwards and backwards"

ZERO_BUBBLE = Part(
    framework="Primus",
    distribution="primus",
    supported="0.3-26.5",
    trigger=RUNTIME,
    instrumentation="stagescope.record.frameworks.primus_zero_bubble",
    points=(
        Point(ITERATION, "run", "iteration"),
        Point(ITERATION, "schedule_f_impl", "scheduled", ("scheduled_node",)),
        Point(ITERATION, "schedule_b_impl", "scheduled", ("scheduled_node",)),
        Point(RUNTIME, "forward_step", "forward"),
        Point(RUNTIME, "backward_step", "backward"),
        Point(GRADIENTS, "pop", "weight", ("chunk",)),
        Point(GRADIENTS, "should_split_bw"),
        Point(STATE, "get_pipeline_model_parallel_rank"),
        Point(STATE, "get_pipeline_model_parallel_world_size"),
    ),
)

PIPE = Part(
    framework="Primus",
    distribution="primus",
    supported="0.6-26.5",
    trigger=LAUNCHER,
    instrumentation="stagescope.record.frameworks.primus_pipe",
    points=(
        Point(f"{LAUNCHER}:PrimusPipelineParallelLauncher", "run", "run", ("num_microbatches", "forward_only")),
        Point(f"{HANDLERS}.fwd_handler", "forward_step", "forward", ("current_microbatch", "vp_stage")),
        Point(f"{HANDLERS}.bwd_handler", "backward_step", "backward", ("output_tensor",)),
        Point(GRADIENT_CACHE, "flush", "weight", ("minibatch", "chunk")),
        Point(GRADIENT_CACHE, "set_current_minibatch_and_chunk"),
        *(
            Point(
                f"{HANDLERS}.{module}", "combined_forward_backward_step", "merged", OF_A_MERGED_CALL,
                required=False, shows=MERGED,
            )
            for module in ("fwd_handler", "bwd_handler", "combined_fwd_bkwd_handler")
        ),
        Point(STATE, "get_pipeline_model_parallel_rank"),
    ),
)  # fmt: skip

PARTS = (ZERO_BUBBLE, PIPE)
