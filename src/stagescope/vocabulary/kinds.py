"""The kinds of span, the lanes they run on, and their one-letter notation.

The letters follow the papers: F and B as in GPipe and PipeDream, I and W (input-gradient and weight-gradient half of
a split backward) as in torch.distributed.pipelining and Zero Bubble (arXiv 2401.10241, which calls I "B").
"""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """One kind of span: its name in every export, its letter, its code in recordings."""

    name: str
    letter: str
    code: int
    lane: str
    meaning: str


COMPUTE, COMM, HOST = "compute", "comm", "host"
LANES: tuple[str, ...] = (COMPUTE, COMM, HOST)
LANE_CODES: dict[str, int] = {lane: code for code, lane in enumerate(LANES)}

KINDS: tuple[Kind, ...] = (
    Kind("forward", "F", 1, COMPUTE, "Forward pass of one micro-batch through one stage."),
    Kind("backward", "B", 2, COMPUTE, "Full backward pass: input and weight gradients."),
    Kind("backward_input", "I", 3, COMPUTE, "Input-gradient half of a split backward pass."),
    Kind("backward_weight", "W", 4, COMPUTE, "Weight-gradient half of a split backward pass."),
    Kind("optimizer", "O", 5, COMPUTE, "Optimizer step."),
    Kind("send_forward", "s", 6, COMM, "Sends a stage's output to the next stage."),
    Kind("recv_forward", "r", 7, COMM, "Receives a stage's input from the previous stage."),
    Kind("send_backward", "S", 8, COMM, "Sends an input gradient to the previous stage."),
    Kind("recv_backward", "R", 9, COMM, "Receives an output gradient from the next stage."),
    Kind("grad_reduce", "G", 10, COMM, "Reduces gradients over data-parallel replicas."),
    Kind("loss", "L", 11, COMPUTE, "Loss of one micro-batch on the last stage."),
    Kind("other", "X", 12, HOST, "Anything else that was recorded, identified by its name."),
    Kind("collective", "C", 13, COMM, "A collective that does not reduce gradients, identified by its name."),
    Kind("send", "n", 14, COMM, "Sends a tensor outside of a known pipeline schedule."),
    Kind("recv", "v", 15, COMM, "Receives a tensor outside of a known pipeline schedule."),
)

BY_NAME: dict[str, Kind] = {kind.name: kind for kind in KINDS}
BY_CODE: dict[int, Kind] = {kind.code: kind for kind in KINDS}
KIND_NAMES: tuple[str, ...] = tuple(kind.name for kind in KINDS)

STEP_CODE = 0
"""The code of a step marker in a recording, which becomes a row of the steps table rather than a span."""

ACTION_KINDS: tuple[str, ...] = ("forward", "backward", "backward_input", "backward_weight")
"""The kinds that a pipeline schedule orders; the window of the bubble extends from the first to the last of them."""

BACKWARDS: tuple[str, ...] = ACTION_KINDS[1:]
EXCHANGING_KINDS: tuple[str, ...] = ACTION_KINDS[:3]
"""The actions that may receive and send; weight gradients stay on their stage."""

SENDS: tuple[str, ...] = ("send_forward", "send_backward")
RECEIVES: tuple[str, ...] = ("recv_forward", "recv_backward")
PLAIN_TRANSFERS: tuple[str, ...] = ("send", "recv")
"""Of these it is unknown whether they move activations or gradients, as in a pipeline that is written by hand."""

ALL_SENDS: tuple[str, ...] = (*SENDS, "send")
ALL_RECEIVES: tuple[str, ...] = (*RECEIVES, "recv")
TRANSFERS: tuple[str, ...] = (*SENDS, *RECEIVES, *PLAIN_TRANSFERS)
COMM_KINDS: tuple[str, ...] = tuple(kind.name for kind in KINDS if kind.lane == COMM)
"""Transfers and collectives: what a host can wait for."""

COLLECTIVE = "collective"
GARBAGE_COLLECTION = "garbage collection"
"""How the names of pauses by Python's garbage collector begin; their kind is other."""


def label(kind: str, stage: int | None, microbatch: int | None) -> str:
    """Return an action in the notation of the field, such as ``F0.3``: stage 0, micro-batch 3.

    >>> label("backward_weight", 1, 2)
    'W1.2'
    """
    if stage is None or microbatch is None:
        return BY_NAME[kind].letter
    return f"{BY_NAME[kind].letter}{stage}.{microbatch}"
