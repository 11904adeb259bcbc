"""Sends and receives of functional collectives: the operators isend, irecv and batch_p2p_ops of torch.

torch.compile turns ``dist.isend``, ``dist.irecv`` and ``dist.batch_isend_irecv`` into them if
TORCHDYNAMO_ENABLE_P2P_COMPILATION is set (torch 2.12 to 2.15). Like collectives, each is waited for by the memory of
its result; the result of a send, an empty tensor, may be dropped without a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.record.frameworks.torch_transfers import RECV, SEND, plain_transfers_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from stagescope.record.calls import Call
    from stagescope.record.frameworks.torch_functional import Handle, Instrumentation

    Observation = Generator[None, Any, Any]

KINDS = {"isend": SEND, "irecv": RECV}

PARAMETERS = {
    "isend": ("self", "dst", "tag", "group_name"),
    "irecv": ("self", "src", "tag", "group_name"),
    "batch_p2p_ops": ("op_list", "peer_list", "tag_list", "tensors", "group_name"),
}
"""The parameters of the operators, which are not known from their functions. Peers are ranks in the group:
the operators pass them to ``ProcessGroup.send`` and ``recv`` (seen with torch 2.13 in a group of ranks 1 and 2)."""


class OperatorTransfers:
    """The observers of these operators."""

    def __init__(self, functional: Instrumentation) -> None:
        self._functional = functional
        self._transfers = plain_transfers_of(functional.recorder)
        self._sends: list[tuple[Handle, int]] = []
        self.ignores = self._transfers.ignores

    def observe(self, name: str, call: Call) -> Observation:
        """Observe an operator that issues a transfer, or several if its first argument lists what each is."""
        from stagescope.record.frameworks.torch_operators import process_group_of  # imports this module

        given = dict(zip(PARAMETERS[name], call.arguments, strict=False)) | dict(call.keywords)
        *arguments, group = (given[parameter] for parameter in PARAMETERS[name])
        owner = process_group_of(group)
        if name == "batch_p2p_ops":
            kinds, peers, tags, tensors = arguments
        else:
            kinds, (tensors, peers, tags) = [name], ([one] for one in arguments)
        issues = [
            self._transfers.begin(KINDS[kind], owner, tensor, tag)
            for kind, tensor, tag in zip(kinds, tensors, tags, strict=True)
        ]
        with self._functional.inside():  # modes of torch call the operator again
            result = yield
        results = result if isinstance(result, (list, tuple)) else [result]
        self._give_up_dropped()
        for issue, peer, waiting in zip(issues, peers, results, strict=True):
            handle = self._functional.expect(waiting, is_dropped=issue.kind == SEND)
            batch = self._transfers.end(issue, peer, handle)
            if issue.kind == SEND:
                self._sends.append((handle, batch))
        return result

    def _give_up_dropped(self) -> None:
        """Record the sends whose results do not exist any more: nothing will wait for them."""
        kept = []
        for handle, batch in self._sends:
            if handle.is_dropped:
                self._transfers.give_up(batch)
            else:
                kept.append((handle, batch))
        self._sends = kept
