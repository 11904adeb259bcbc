"""Why blocking sends kept a rank from its next action, or an input from arriving: parts by cause for every action.

A receiver that begins its step late keeps its neighbor in a send, and that neighbor the next one: what the first of
them did is the cause for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.graph.latest_inputs import NO_ACTION
from stagescope.analysis.graph.replay_basis import transfer_times

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

LATE = ("data_loading", "optimizer", "other_work", "gradient_reduction", "data_parallel_wait", "unattributed")
"""What late receivers do, by the name of the cause."""


class SendParts(NamedTuple):
    """Times in nanoseconds per action, by the name of the cause.

    `after` is how long sends kept the rank from the action after its previous one had ended, `before` how long a late
    receiver kept the input of the action from being sent. `receiver` is the first action of the late receiver that
    both waited for, NO_ACTION without one.
    """

    after: dict[str, Floats]
    before: dict[str, Floats]
    receiver: Integers


class _Late(NamedTuple):
    """What late receivers did while each send waited for them: causes of LATE x sends, and the action they began with.

    `until_ns` is when they posted the receive.
    """

    parts_ns: Floats
    receiver: Integers
    until_ns: Integers


def find_send_parts(actions: Actions, basis: ReplayBasis) -> SendParts:
    """Return the parts; `basis` has the late receivers of these actions. Without blocking sends there are none."""
    sends, late, table = basis.plan.sends, basis.late, actions.table
    receiver = np.full(table.height, NO_ACTION, dtype=np.int64)
    if not len(sends.need):
        return SendParts({}, {}, receiver)
    found = _pass_on(actions, basis)
    of_sends = dict(zip(LATE, found.parts_ns, strict=True))
    of_sends["gradient_reduction"] = of_sends["gradient_reduction"] + sends.held.reduction_ns
    of_sends["data_parallel_wait"] = of_sends["data_parallel_wait"] + sends.held.replicas_ns
    rest_ns = np.maximum(sends.end_ns - sends.got_ns - sum(of_sends.values()), 0)
    of_sends["exposed_communication"] = np.minimum(transfer_times(actions, sends, basis.usual), rest_ns)
    of_sends["blocked_on_send"] = rest_ns - of_sends["exposed_communication"]
    following = np.minimum(sends.after + 1, table.height - 1)
    goes_on = (following > sends.after) & (table["place"].to_numpy()[following] > 0)
    known = goes_on & (found.receiver != NO_ACTION)
    receiver[following[known]] = found.receiver[known]
    consumer = sends.consumer[late.send]
    receiver[consumer] = late.action
    after = {
        name: _summed(part_ns[goes_on], following[goes_on], table.height)
        for name, part_ns in of_sends.items()
    }
    before = {name: _summed(getattr(late, f"{name}_ns"), consumer, table.height) for name in LATE}
    return SendParts(after, before, receiver)


def _pass_on(actions: Actions, basis: ReplayBasis) -> _Late:
    """Return what late receivers did during every send to them, or to a rank that is itself blocked in such a send."""
    sends, late, count = basis.plan.sends, basis.late, actions.table.height
    parts_ns = np.zeros((len(LATE), len(sends.need)))
    parts_ns[:, late.send] = [getattr(late, f"{name}_ns") for name in LATE]
    receiver = np.full(len(sends.need), NO_ACTION, dtype=np.int64)
    receiver[late.send] = late.action
    until_ns = sends.free_ns + np.rint(parts_ns.sum(axis=0)).astype(np.int64)
    waits = np.flatnonzero((sends.gate >= count) & (receiver == NO_ACTION))
    while len(waits):
        gate = sends.gate[waits] - count
        kept_ns = np.minimum(until_ns[gate], sends.left_ns[waits]) - sends.free_ns[waits]
        is_next = (receiver[gate] != NO_ACTION) & (kept_ns > 0)
        if not is_next.any():
            break
        send, gate, kept_ns = waits[is_next], gate[is_next], kept_ns[is_next]
        parts_ns[:, send] = parts_ns[:, gate] * (kept_ns / np.maximum(parts_ns[:, gate].sum(axis=0), 1))
        receiver[send], until_ns[send] = receiver[gate], sends.free_ns[send] + kept_ns
        waits = waits[~is_next]
    return _Late(parts_ns, receiver, until_ns)


def _summed(part_ns: Floats | Integers, action: Integers, count: int) -> Floats:
    summed: Floats = np.bincount(action, weights=part_ns, minlength=count).astype(np.float64)
    return summed


def limited(parts: dict[str, Floats], limit_ns: Floats) -> dict[str, Floats]:
    """Return parts of which no more than `limit_ns` can have been: all of them in proportion."""
    if not parts:
        return {}
    total_ns = np.zeros(len(limit_ns))
    for part_ns in parts.values():
        total_ns += part_ns
    most_ns = np.minimum(total_ns, np.maximum(limit_ns, 0))
    ratio = np.divide(most_ns, total_ns, out=np.zeros_like(total_ns), where=total_ns > 0)
    return {name: part_ns * ratio for name, part_ns in parts.items()}
