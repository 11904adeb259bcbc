"""Transfers between the modules of a model that consists of several (MIMO), such as a vision encoder and a decoder.

Each method of ``BridgeCommunicator`` (bridge_communicator.py, megatron-core 0.15.0 to 0.19.2) sends to and receives
from the leading ranks of the other module, and returns when that has been done. A message lasts as long as the call,
which also exchanges shapes and, within the own module, broadcasts what was received. The ranks that only take part in
the broadcast have no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.clock import now_ns
from stagescope.record.format import NONE
from stagescope.record.frameworks.megatron_message import (
    RECV_BACKWARD,
    RECV_FORWARD,
    SEND_BACKWARD,
    SEND_FORWARD,
    Message,
)
from stagescope.record.frameworks.megatron_messages import Messages, size_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.calls import Call

    Observation = Generator[None, Any, Any]

KINDS = {
    "send_forward": (SEND_FORWARD,),
    "recv_forward": (RECV_FORWARD,),
    "send_backward": (SEND_BACKWARD,),
    "recv_backward": (RECV_BACKWARD,),
    "send_forward_recv_backward": (SEND_FORWARD, RECV_BACKWARD),
    "send_backward_recv_forward": (SEND_BACKWARD, RECV_FORWARD),
}
"""What each method transfers."""

TO_THE_NEXT_MODULE = (SEND_FORWARD, RECV_BACKWARD)
SENT = ("tensor_to_send", "grad_tensor", "input_tensor")
"""Names of the argument with the tensor that is sent; a method has one of them at most."""


def observe_bridge(messages: Messages, call: Call) -> Observation:
    """Observe a method of a BridgeCommunicator."""
    begun = _begin(messages, call) if messages.is_active else []
    if not begun:
        return
    start, start_ns = messages.begin_wait(begun), now_ns()
    result = yield
    received = [message for message in begun if message.is_receive]
    for message in received:
        message.size_bytes = size_of(result) // len(received)
        messages.brings(message, [result])
    for message in begun:
        message.start_ns, message.end_ns = start_ns, now_ns()
    messages.end_wait(begun, start)


def _begin(messages: Messages, call: Call) -> list[Message]:
    """Return the messages of a call: one per rank of the other module that this rank exchanges data with."""
    plan = call.owner.comm_map[call.owner.current_rank]
    sent = next((tensor for name in SENT if (tensor := call.get(name)) is not None), None)
    begun = []
    for kind in KINDS[call.name]:
        peers = plan.send_to_ranks if kind in TO_THE_NEXT_MODULE else plan.recv_from_ranks
        sends = kind in (SEND_FORWARD, SEND_BACKWARD)
        for peer in peers:
            size_bytes = size_of(sent) // len(peers) if sends else NONE
            begun.append(messages.begin(kind, peer, size_bytes, [sent] if sends else []))
    return begun
