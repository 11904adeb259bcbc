"""What is observed in torch.distributed.pipelining.

Read in torch 2.5.0 to 2.15.0, torch/distributed/pipelining/schedules.py and stage.py.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

FRAMEWORK = "torch.distributed.pipelining"
SCHEDULES = f"{FRAMEWORK}.schedules"
STAGE = f"{FRAMEWORK}.stage:_PipelineStageBase"

COMPUTE = (
    Point(STAGE, "forward_one_chunk", "forward", reads=("fwd_chunk_id",)),
    Point(STAGE, "backward_one_chunk", "backward", reads=("bwd_chunk_id", "full_backward")),
    Point(STAGE, "backward_weight_one_chunk", "backward_weight", reads=("bwd_chunk_id",)),
    # From torch 2.10 on; before, FSDP reduces inside the last backward.
    Point(STAGE, "perform_reduce_grad", "reduce_grad", required=False, shows="gradient reductions"),
    # From torch 2.15 on, for FSDP in the runtime schedules.
    Point(STAGE, "start_gradient_reduction", "reduce_grad", required=False),
    Point(STAGE, "wait_for_gradient_reduction", "reduce_grad", required=False),
)
OPERATIONS = (
    Point(STAGE, "get_fwd_recv_ops", "forward_receives", reads=("fwd_chunk_id",)),
    Point(STAGE, "get_fwd_send_ops", "forward_sends", reads=("fwd_chunk_id",)),
    Point(STAGE, "get_bwd_recv_ops", "backward_receives", reads=("bwd_chunk_id",)),
    Point(STAGE, "get_bwd_send_ops", "backward_sends", reads=("bwd_chunk_id",)),
)
OF_STAGES = (*COMPUTE, *OPERATIONS)
"""The methods that a subclass of a stage may override, where they are observed too."""

PARTS = (
    Part(
        FRAMEWORK,
        "torch",
        "2.5-2.15",
        SCHEDULES,
        "stagescope.record.frameworks.torch_pipelining",
        (
            *OF_STAGES,
            Point(STAGE, "has_backward"),
            Point(STAGE, "is_last"),
            Point(SCHEDULES, "_batch_p2p", "issue", reads=("p2p_ops",)),
            Point(
                f"{SCHEDULES}:_PipelineSchedule", "_maybe_compute_loss", "loss", reads=("stage", "mb_index")
            ),
            # Called in each step, with what every micro-batch of the first stage gets.
            Point(
                f"{SCHEDULES}:_PipelineSchedule",
                "_check_inputs",
                "inputs",
                required=False,
                shows="tokens and samples of micro-batches",
            ),
            Point(
                f"{SCHEDULES}:_PipelineSchedule",
                "__init__",
                "create",
                required=False,
                shows="which schedules only evaluate",
            ),
            Point(f"{SCHEDULES}:PipelineScheduleSingle", "step", "step"),
            Point(f"{SCHEDULES}:PipelineScheduleMulti", "step", "step"),
            # The schedules enter `record_function(_get_profiler_function_name(action))` from torch 2.9 on.
            Point(SCHEDULES, "record_function"),
            Point(
                SCHEDULES,
                "_get_profiler_function_name",
                required=False,
                shows="parameter gathering (UNSHARD, RESHARD)",
            ),
        ),
    ),
)
