"""The functions of Paddle that are observed: fleet's dynamic-graph pipelines and the static-graph executor.

Read in paddlepaddle 2.6.2, 3.0.0, 3.1.0, 3.1.1, 3.2.0, 3.2.1, 3.2.2, 3.3.0 and 3.3.1: paddle/base/executor.py and
paddle/distributed/fleet/meta_parallel.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

META_PARALLEL = "paddle.distributed.fleet.meta_parallel"
PIPELINES = f"{META_PARALLEL}.pipeline_parallel"
P2P = f"{META_PARALLEL}.pp_utils.p2p_communication"
FOUR_DIRECTIONS = f"{META_PARALLEL}.pp_utils.four_directions_p2p_communication"
LAYERS = f"{META_PARALLEL}.parallel_layers.pp_layers"
DUALPIPE = f"{META_PARALLEL}.dualpipev"
ZERO_BUBBLE = f"{META_PARALLEL}.zero_bubble_utils"
OPTIMIZERS = "paddle.distributed.fleet.meta_optimizers.dygraph_optimizer.hybrid_parallel_optimizer"
EXECUTORS = "paddle.base.executor"

_BASE = f"{PIPELINES}:PipelineParallel"
_INTERLEAVED = f"{PIPELINES}:PipelineParallelWithInterleave"
_ALL_FORWARDS_FIRST = f"{PIPELINES}:PipelineParallelWithInterleaveFthenB"
_BALANCED = f"{PIPELINES}:VPPFhenBInBalancedMemory"
_HANDLE = f"{PIPELINES}:P2PAsyncHandle"
_SINGLE = f"{PIPELINES}:NoPipelineParallel"
_V = f"{DUALPIPE}:DualPipeVParallel"
_STORE = f"{ZERO_BUBBLE}:WeightGradStore"

_TRANSFERS = (
    "send_forward",
    "recv_forward",
    "send_backward",
    "recv_backward",
    "send_forward_recv_backward",
    "send_backward_recv_forward",
    "send_forward_backward_recv_forward_backward",
    "send_forward_recv_forward",
    "send_backward_recv_backward",
)
_MOVED = ("tensor_send_next", "tensor_send_prev", "recv_prev", "recv_next")

FLEET = Part(
    framework="Paddle fleet",
    distribution="paddlepaddle",
    supported="2.6.2-3.3.1",
    trigger=PIPELINES,
    instrumentation="stagescope.record.frameworks.paddle_fleet",
    points=(
        Point(_BASE, "train_batch", "step"),
        Point(_BASE, "forward_backward_pipeline", "step"),
        Point(_BASE, "eval_batch", "evaluation"),
        Point(_BASE, "_forward_step", "forward", reads=("input_tensor", "chunk_id")),
        Point(_BASE, "_backward_step", "backward", reads=("output_tensor", "output_tensor_grad")),
        Point(_INTERLEAVED, "train_batch", "step"),
        Point(_INTERLEAVED, "forward_backward_pipeline", "step"),
        Point(_INTERLEAVED, "eval_batch", "evaluation"),
        Point(_INTERLEAVED, "_get_virtual_pp_rank"),
        Point(_ALL_FORWARDS_FIRST, "forward_backward_pipeline", "step"),
        Point(P2P, "_p2p_helper", "move", reads=_MOVED, any_of="transfers"),
        Point(FOUR_DIRECTIONS, "_p2p_helper", "move", reads=_MOVED, any_of="transfers"),
        *(
            Point(f"{module}:P2pHelper", name, "enter", required=False)
            for module in (P2P, FOUR_DIRECTIONS)
            for name in _TRANSFERS
        ),
        Point(
            f"{OPTIMIZERS}:HybridParallelOptimizer",
            "step",
            "optimizer",
            required=False,
            shows="optimizer steps",
        ),
        Point(
            PIPELINES,
            "register_global_pipeline_parallel_hook",
            required=False,
            shows="forwards without data loading and loss",
        ),
        Point(_BASE, "_maybe_loss_compute", "loss", required=False, shows="the computation of the loss"),
        Point(_BASE, "__init__", "build", required=False),
        Point(_BALANCED, "forward_backward_pipeline", "step", required=False),
        Point(
            _INTERLEAVED,
            "_forward_backward_helper",
            "overlapped",
            reads=("forward_micro_step_id", "backward_micro_step_id"),
            required=False,
        ),
        Point(_INTERLEAVED, "_get_forward_input", "forward_input", required=False),
        Point(_INTERLEAVED, "_get_backward_input", "backward_input", required=False),
        Point(_HANDLE, "forward_async_comm", "forward_output", reads=("output_tensor",), required=False),
        Point(
            _HANDLE, "backward_async_comm", "backward_output", reads=("input_tensor_grad",), required=False
        ),
    ),
)

DUALPIPEV = Part(
    framework="Paddle fleet DualPipeV",
    distribution="paddlepaddle",
    supported="3.1.0-3.3.1",
    trigger=DUALPIPE,
    instrumentation="stagescope.record.frameworks.paddle_dualpipe",
    points=(
        Point(_V, "train_batch", "step"),
        Point(_V, "forward_backward_pipeline", "step"),
        Point(_V, "_forward_compute", "forward", reads=("phase",)),
        Point(_V, "_backward_compute", "backward", reads=("phase",)),
        Point(_V, "_forward_backward_compute", "pair", reads=("forward_phase", "backward_phase")),
        Point(_STORE, "flush", "flush"),
        Point(_STORE, "pop", "weight"),
        Point(_V, "_send_forward", "send_forward", reads=("phase",)),
        Point(_V, "_recv_forward", "recv_forward", reads=("phase",)),
        Point(_V, "_send_backward", "send_backward", reads=("phase",)),
        Point(_V, "_recv_backward", "recv_backward", reads=("phase",)),
        Point(_V, "_commit_and_wait_comm", "commit"),
        Point(DUALPIPE, "batch_isend_irecv", "batch", reads=("p2p_op_list",), required=False),
    ),
)

SINGLE = Part(
    framework="Paddle fleet NoPipelineParallel",
    distribution="paddlepaddle",
    supported="3.3.1",
    trigger=PIPELINES,
    instrumentation="stagescope.record.frameworks.paddle_single",
    points=(
        Point(_SINGLE, "train_batch", "step"),
        Point(_SINGLE, "forward_backward_pipeline", "step"),
        Point(_SINGLE, "eval_batch", "evaluation"),
        Point(f"{LAYERS}:PipelineLayer", "forward", "forward"),
        Point("paddle.autograd", "backward", "backward"),
    ),
)
"""Paddle before 3.3.1 has no such class, and nothing is installed for it."""

STATIC = Part(
    framework="Paddle static graph",
    distribution="paddlepaddle",
    supported="2.6.2-3.3.1",
    trigger=EXECUTORS,
    instrumentation="stagescope.record.frameworks.paddle_static",
    points=(
        Point(f"{EXECUTORS}:_StandaloneExecutor", "run", "run"),
        Point(f"{EXECUTORS}:Executor", "run", "request", required=False, shows="actions on a device"),
    ),
)

PARTS = (FLEET, DUALPIPEV, SINGLE, STATIC)
