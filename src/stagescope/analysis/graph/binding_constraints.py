"""What bound every action: the one before it on its rank, or one of its inputs, whichever came last.

How long a result was on its way is what find_transfer_lags says, so that a receive that was posted late does not make
its sender the one that bound. Actions of a rank that overlapped were not bound by each other's ends, but by the
same distance to them as measured; the same holds for effects that stand before their causes.
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
    """At most one binding_constraint per action: whom it waits for, and how long after the end of that one it may start."""

    source: Indices
    lag_ns: Integers


class BindingConstraints(NamedTuple):
    """What bound each action, all in the order of `plan`; a source of len(order) stands for none.

    binding_constraints               all of them: the one to the previous action of the rank, and one for each need
    bound               the one action that bound it, the one on its own rank where two did
    ready_ns            when nothing bound it any more; its start where nothing ever did
    start_ns, end_ns    as measured, with one value more for no action
    """

    plan: ReplayPlan
    binding_constraints: tuple[Constraint, ...]
    bound: Indices
    ready_ns: Integers
    start_ns: Integers
    end_ns: Integers


def find_binding_constraints(actions: Actions, plan: ReplayPlan, lag_ns: Integers) -> BindingConstraints:
    """Return what bound every action; `plan` is what plan_replay, `lag_ns` what find_transfer_lags returns."""
    table, count = actions.table, len(plan.order)
    start_ns, end_ns = (np.append(table[name].to_numpy()[plan.order], 0) for name in ("start_ns", "end_ns"))
    lags = np.append(lag_ns, 0)
    binding_constraints = [Constraint(plan.before, np.zeros(count, dtype=np.int64))]
    binding_constraints += [Constraint(needs.producer, lags[needs.row]) for needs in plan.needs]
    bound = np.full(count, count, dtype=np.int32)
    ready_ns = np.full(count, np.iinfo(np.int64).min)
    for source, lag in binding_constraints:
        ended_ns = end_ns[source]
        np.minimum(lag, start_ns[:count] - ended_ns, out=lag)  # never more than was measured
        ended_ns += lag
        binds = (source < count) & (ended_ns > ready_ns)
        bound[binds] = source[binds]
        ready_ns[binds] = ended_ns[binds]
    is_free = bound == count
    ready_ns[is_free] = start_ns[:count][is_free]
    return BindingConstraints(plan, tuple(binding_constraints), bound, ready_ns, start_ns, end_ns)
