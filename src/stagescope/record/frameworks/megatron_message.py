"""One message of Megatron-core; megatron_messages follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.record.format import NONE
from stagescope.record.frameworks.runs import UNKNOWN
from stagescope.vocabulary.kinds import BY_NAME

if TYPE_CHECKING:
    Numbers = tuple[int, int, int]  # those of a Place

SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD = (
    BY_NAME[name].code for name in ("send_forward", "recv_forward", "send_backward", "recv_backward")
)


class Message:
    """One tensor in transit."""

    __slots__ = (
        "action_is_known",
        "chunk",
        "end_ns",
        "is_recorded",
        "kind",
        "microbatch",
        "peer",
        "size_bytes",
        "stage",
        "start_ns",
        "step",
        "wait_end_ns",
        "wait_start_ns",
        "waits",
    )  # fmt: skip

    def __init__(self, kind: int, peer: int, size_bytes: int, step: int) -> None:
        self.kind = kind
        self.peer = peer
        self.size_bytes = size_bytes
        self.step = step
        self.stage, self.microbatch, self.chunk = UNKNOWN
        self.action_is_known = False
        self.is_recorded = False
        self.waits = False
        self.start_ns = self.end_ns = self.wait_start_ns = self.wait_end_ns = NONE

    @property
    def is_receive(self) -> bool:
        """Whether this rank receives it."""
        return self.kind in (RECV_FORWARD, RECV_BACKWARD)

    def belongs_to(self, place: Numbers) -> None:
        """Set the action that the message belongs to."""
        self.stage, self.microbatch, self.chunk = place
        self.action_is_known = True
