"""Binding constraints: what delayed every action, the previous event of its rank or the last of its inputs.

Blocking sends are events, too (replay.py): they are delayed by the event before them, or by their gate.

Travel times of results come from find_transfer_lags, so that a receive that was posted late does not make its sender
the constraint. Actions of one rank that overlapped are not bound by each other's ends but keep their measured distance;
the same holds for effects before their causes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay import ReplayPlan

    Indices = NDArray[np.int32]
    Integers = NDArray[np.int64]


class Constraint(NamedTuple):
    """At most one constraint per event: the event it waits for, and how long after that one ends it may start.

    A source that is larger than the number of events is the start of the event that many plus one smaller.
    """

    source: Indices
    lag_ns: Integers


class BindingConstraints(NamedTuple):
    """The constraints of every event, in the order of `plan`; a source of len(order) means none.

    `constraints` are all of them: one for the previous event of the rank, and one per need. `bound` is the event
    whose constraint was met last, and `bound_by_start` whether by its start; of two at the same time, the one on its
    own rank. `ready_ns` is when that was; the start of an event without constraints. `start_ns` and `end_ns` are as
    measured, with one more entry for no event.
    """

    plan: ReplayPlan
    constraints: tuple[Constraint, ...]
    bound: Indices
    bound_by_start: NDArray[np.bool_]
    ready_ns: Integers
    start_ns: Integers
    end_ns: Integers


def find_binding_constraints(actions: Actions, plan: ReplayPlan, lag_ns: Integers) -> BindingConstraints:
    """Return the constraints of every event; `plan` is from plan_replay, `lag_ns` from find_transfer_lags."""
    table, count, sends = actions.table, len(plan.order), plan.sends
    start_ns = np.append(np.append(table["start_ns"].to_numpy(), sends.left_ns)[plan.order], 0)
    end_ns = np.append(np.append(table["end_ns"].to_numpy(), sends.end_ns)[plan.order], 0)
    times = np.concatenate([end_ns, start_ns])
    lags = np.append(lag_ns, 0)
    constraints = [Constraint(plan.before, np.zeros(count, dtype=np.int64))]
    constraints += [Constraint(needs.producer, lags[needs.row]) for needs in plan.needs]
    bound = np.full(count, count, dtype=np.int32)
    ready_ns = np.full(count, np.iinfo(np.int64).min)
    for source, lag in constraints:
        met_ns = times[source]
        np.minimum(
            lag, start_ns[:count] - met_ns, out=lag
        )  # a lag is never longer than the measured distance
        met_ns += lag
        # Strictly later: the constraint of the own rank is first in the list, and binds in a tie.
        binds = (source != count) & (met_ns > ready_ns)
        bound[binds] = source[binds]
        ready_ns[binds] = met_ns[binds]
    is_free = bound == count
    ready_ns[is_free] = start_ns[:count][is_free]
    by_start = bound > count
    bound[by_start] -= count + 1
    return BindingConstraints(plan, tuple(constraints), bound, by_start, ready_ns, start_ns, end_ns)
