"""Which actions and transfers make a step longer: the difference between two replays, divided among them.

Between the costs without a cause and those with it, the length of a step grows as fast as the actions and transfers on
its critical path do. Along the straight line from the one to the other, every action therefore gets what it adds while
it is on the path (the method of Aumann and Shapley for dividing a common cost). The line is sampled, so the sums are
scaled to the exact difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.graph.replay import NONE, replay

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.analysis.graph.step_groups import StepGroups

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]
    Times = NDArray[np.float64] | NDArray[np.int64]

SAMPLES = 2
"""Replays along the line. With two, no planted cause moves by more than 2 % of itself compared with eight."""

MOST_SCALED = 2.0
"""Sums that differ from the exact difference by a larger factor are not scaled: what is missing has no origin."""


class ReplayCosts(NamedTuple):
    """What a replay runs with: a duration per action, and a lag per need."""

    duration_ns: Times
    lag_ns: Integers


class Path(NamedTuple):
    """The critical paths: step (its row in StepGroups), action, and the need that it waited for, NONE if none."""

    step: Integers
    action: Integers
    need: Integers


class MakespanShares(NamedTuple):
    """Parts of the difference: the row of their step in StepGroups, and the action or the need that they come from.

    With a need, `action` is the one that had it; otherwise the need is NONE.
    """

    step: Integers
    action: Integers
    need: Integers
    share_ns: Floats


def share_makespan(
    plan: ReplayPlan, groups: StepGroups, more: ReplayCosts, less: ReplayCosts, change_ns: Times
) -> MakespanShares:
    """Return what each action and need contributes to the difference of the replays of `more` and `less`.

    `change_ns` is the difference per step. The shares of a step sum to it, unless what was found on the paths is of the
    other sign or far from it.
    """
    extra_ns = np.asarray(more.duration_ns, dtype=np.float64) - less.duration_ns
    extra_lag_ns = np.asarray(more.lag_ns, dtype=np.float64) - less.lag_ns
    parts = []
    for sample in range(SAMPLES):
        place = (sample + 0.5) / SAMPLES
        between = ReplayCosts(
            less.duration_ns + place * extra_ns, np.rint(less.lag_ns + place * extra_lag_ns).astype(np.int64)
        )
        path = _walk(plan, groups, between)
        none = np.full(len(path.action), NONE, dtype=np.int64)
        parts.append(MakespanShares(path.step, path.action, none, extra_ns[path.action]))
        step, action, need = (column[path.need != NONE] for column in path)
        parts.append(MakespanShares(step, action, need, extra_lag_ns[need]))
    step, action, need, share_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    counts = share_ns != 0
    shares = MakespanShares(step[counts], action[counts], need[counts], share_ns[counts] / SAMPLES)
    return _scaled(shares, np.asarray(change_ns, dtype=np.float64))


def _walk(plan: ReplayPlan, groups: StepGroups, costs: ReplayCosts) -> Path:
    """Return the critical paths of a replay."""
    by_action = replay(plan, costs.duration_ns, costs.lag_ns)
    count = len(plan.order)
    ends = np.append(by_action[plan.order], 0)
    place_of = np.empty(count, dtype=np.int64)
    place_of[plan.order] = np.arange(count)
    step_of_action = groups.step_of_action()
    last = np.flatnonzero(by_action == groups.makespan_ns(by_action)[step_of_action])
    step, first = np.unique(step_of_action[last], return_index=True)
    place, lags = place_of[last[first]], np.append(costs.lag_ns, 0)
    steps, places, needed = [], [], []
    while len(place):
        before, need = _binding(plan, ends, lags, place)
        steps.append(step)
        places.append(place)
        needed.append(need)
        goes_on = before < count
        step, place = step[goes_on], before[goes_on]
    if not steps:
        return Path(*(np.empty(0, dtype=np.int64) for _ in range(3)))
    actions = plan.order[np.concatenate(places)].astype(np.int64)
    return Path(np.concatenate(steps), actions, np.concatenate(needed))


def _binding(plan: ReplayPlan, ends: Times, lags: Integers, place: Integers) -> tuple[Integers, Integers]:
    """Return what each action waited for last: its place, and its need or NONE if it is the order of its rank."""
    before = plan.before[place].astype(np.int64)
    need = np.full(len(place), NONE, dtype=np.int64)
    ready = ends[before]
    for needs in plan.needs:
        row, producer = needs.row[place], needs.producer[place]
        arrived = ends[producer] + lags[row]
        is_later = (row != NONE) & (arrived > ready)
        before[is_later], need[is_later] = producer[is_later], row[is_later]
        ready[is_later] = arrived[is_later]
    return before, need


def _scaled(shares: MakespanShares, change_ns: Floats) -> MakespanShares:
    """Return the shares scaled to the exact change of their step, where they are close to it."""
    found = np.bincount(shares.step, weights=shares.share_ns, minlength=len(change_ns))
    ratio = np.divide(change_ns, found, out=np.ones(len(change_ns)), where=found != 0)
    is_close = (ratio >= 1 / MOST_SCALED) & (ratio <= MOST_SCALED)
    return shares._replace(share_ns=shares.share_ns * np.where(is_close, ratio, 1.0)[shares.step])
