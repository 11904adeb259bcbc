"""DeepSpeed's pipeline engine (deepspeed/runtime/pipe), and DualPipeV, which DeepSpeed has from 0.19.8 on.

The engine looks up each instruction in a class dict, so the functions in the dict are observed, and it is checked that
the dict has them. The methods below without a hook are what the dict contains in all known versions.
"""

from __future__ import annotations

from stagescope.record.points import Part, Point

ENGINE_MODULE = "deepspeed.runtime.pipe.engine"
P2P_MODULE = "deepspeed.runtime.pipe.p2p"
DUALPIPEV_MODULE = "deepspeed.runtime.pipe.dualpipev"
COMM_MODULE = "deepspeed.comm"

BASE_MODULE = "deepspeed.runtime.engine"
BASE_CLASS = f"{BASE_MODULE}:DeepSpeedEngine"
ENGINE_CLASS = f"{ENGINE_MODULE}:PipelineEngine"
DUALPIPEV_CLASS = f"{DUALPIPEV_MODULE}:DualPipeVEngine"

INSTRUCTIONS = (
    "_exec_forward_pass",
    "_exec_backward_pass",
    "_exec_send_activations",
    "_exec_recv_activations",
    "_exec_send_grads",
    "_exec_recv_grads",
)
"""The methods in the dict that run actions and move data."""

ENGINE = Part(
    "DeepSpeed",
    "deepspeed",
    "0.14-0.19.8",
    ENGINE_MODULE,
    "stagescope.record.frameworks.deepspeed",
    (
        Point(ENGINE_CLASS, "_INSTRUCTION_MAP"),
        *(Point(ENGINE_CLASS, name, required=False) for name in INSTRUCTIONS),
        Point(ENGINE_CLASS, "train_batch", "train_batch"),
        Point(ENGINE_CLASS, "eval_batch", "eval_batch"),
        Point(ENGINE_CLASS, "_exec_schedule", "exec_schedule", reads=("pipe_schedule",)),
        Point(ENGINE_CLASS, "_send_tensor_meta", "shapes"),
        Point(ENGINE_CLASS, "_recv_tensor_meta", "shapes"),
        Point(P2P_MODULE, "send", "moved", reads=("tensor", "dest_stage")),
        Point(P2P_MODULE, "recv", "moved", reads=("tensor", "src_stage")),
    ),
)

DUALPIPEV = Part(
    "DeepSpeed DualPipeV",
    "deepspeed",
    "0.19.8",
    DUALPIPEV_MODULE,
    "stagescope.record.frameworks.deepspeed",
    (
        Point(DUALPIPEV_CLASS, "_INSTRUCTION_MAP"),
        *(Point(DUALPIPEV_CLASS, name, required=False) for name in (*INSTRUCTIONS, "_exec_commit_p2p")),
        Point(DUALPIPEV_CLASS, "_queue_p2p", "queued", reads=("tensors", "stage")),
        Point(
            COMM_MODULE,
            "batch_isend_irecv",
            "launched",
            required=False,
            shows="the wait for each message of DualPipeV",
        ),
    ),
)

CHECKPOINTS = Part(
    "DeepSpeed",
    "deepspeed",
    "0.14-0.19.8",
    BASE_MODULE,
    "stagescope.record.frameworks.deepspeed",
    (
        Point(BASE_CLASS, "save_checkpoint", "checkpoint", required=False),
        Point(BASE_CLASS, "load_checkpoint", "checkpoint", required=False),
    ),
)

PARTS = (ENGINE, DUALPIPEV, CHECKPOINTS)
