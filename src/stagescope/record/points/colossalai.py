"""ColossalAI's pipeline schedules, its zero-bubble schedule (from 0.4.7 on), and the data parallelism around them."""

from __future__ import annotations

from stagescope.record.points import Part, Point

TRIGGER = "colossalai.pipeline.schedule"
P2P_MODULE = "colossalai.pipeline.p2p"
ZERO_BUBBLE_MODULE = f"{TRIGGER}.zero_bubble_pp"

_BASE = f"{TRIGGER}.base:PipelineSchedule"
_ONE = f"{TRIGGER}.one_f_one_b:OneForwardOneBackwardSchedule"
_INTERLEAVED = f"{TRIGGER}.interleaved_pp:InterleavedSchedule"
_ZERO_BUBBLE = f"{ZERO_BUBBLE_MODULE}:ZeroBubbleVPipeScheduler"
_P2P = f"{P2P_MODULE}:PipelineP2PCommunication"

FRAMEWORK = "ColossalAI"

PIPELINE = Part(
    FRAMEWORK,
    "colossalai",
    "0.3.9-0.5.0",
    TRIGGER,
    "stagescope.record.frameworks.colossalai",
    (
        Point(_ONE, "forward_backward_step", "run", reads=("optimizer",)),
        Point(_ONE, "forward_step", "forward", reads=("input_obj",)),
        Point(_ONE, "backward_step", "backward", reads=("output_obj", "output_obj_grad")),
        Point(_INTERLEAVED, "forward_backward_step", "run", reads=("optimizer",)),
        Point(_INTERLEAVED, "forward_step", "forward", reads=("model_chunk_id", "input_obj")),
        Point(_INTERLEAVED, "backward_step", "backward", reads=("output_obj", "output_obj_grad")),
        Point(_P2P, "send_forward", "transfer", reads=("output_object", "next_rank")),
        Point(_P2P, "recv_forward", "transfer", reads=("prev_rank",)),
        Point(_P2P, "send_backward", "transfer", reads=("input_object", "prev_rank")),
        Point(_P2P, "recv_backward", "transfer", reads=("next_rank",)),
        Point(_P2P, "send_forward_recv_backward", "transfer", reads=("input_object",)),
        Point(_P2P, "send_backward_recv_forward", "transfer", reads=("input_object",)),
        # From 0.4.0 on; before, the interleaved schedule called the functions above.
        Point(
            _P2P,
            "send_forward_recv_forward",
            "transfer",
            reads=("output_object", "is_send", "is_recv"),
            required=False,
        ),
        Point(
            _P2P,
            "send_backward_recv_backward",
            "transfer",
            reads=("input_object", "is_send", "is_recv"),
            required=False,
        ),
        Point(_BASE, "__init__", "created", required=False, shows="the names of other schedules"),
    ),
)

ZERO_BUBBLE = Part(
    "ColossalAI ZBV",
    "colossalai",
    "0.4.7-0.5.0",
    TRIGGER,
    "stagescope.record.frameworks.colossalai",
    (
        Point(_ZERO_BUBBLE, "forward_backward_step", "run", reads=("optimizer",)),
        Point(_ZERO_BUBBLE, "forward_step", "forward", reads=("model_chunk_id", "input_obj")),
        Point(
            _ZERO_BUBBLE,
            "backward_b_step",
            "backward_input",
            reads=("model_chunk_id", "output_obj", "output_obj_grad"),
        ),
        Point(_ZERO_BUBBLE, "schedule_w", "backward_weight", reads=("model_chunk_id",)),
        Point(_ZERO_BUBBLE, "send_forward", "send_queued", reads=("model_chunk_id",)),
    ),
)

PLUGIN = "colossalai.booster.plugin.hybrid_parallel_plugin"
ZERO = "colossalai.zero.low_level.low_level_optim"


def _replicas(trigger: str, *points: tuple[str, str, str]) -> Part:
    """Return a part of optional points, each given by its class, its name and its hook."""
    found = (Point(f"{trigger}:{owner}", name, hook, required=False) for owner, name, hook in points)
    instrumentation = "stagescope.record.frameworks.colossalai_replicas"
    return Part(FRAMEWORK, "colossalai", "0.3.9-0.5.0", trigger, instrumentation, tuple(found))


REPLICAS = (
    _replicas(
        PLUGIN,
        ("HybridParallelModule", "__init__", "replicate"),
        ("HybridParallelModule", "sync_shared_params", "reduce"),
        ("HybridParallelModule", "sync_dp_grads", "reduce"),
        ("HybridParallelModule", "sync_sp_grads", "reduce"),
    ),
    _replicas(ZERO, ("LowLevelZeroOptimizer", "_run_reduction", "reduce")),
)

PARTS = (PIPELINE, ZERO_BUBBLE, *REPLICAS)
