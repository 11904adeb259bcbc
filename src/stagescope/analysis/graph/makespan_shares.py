"""Which actions and transfers make a step longer: the difference between two replays, divided among them.

Between the costs without a cause and those with it, the length of a step grows as fast as the actions and transfers on
its critical path do. Along the straight line from the one to the other, every action therefore gets what it adds while
it is on the path (the method of Aumann and Shapley for dividing a common cost). The line is sampled, so the sums are
scaled to the exact difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.graph.replay import NONE, OPEN_NS, replay_events

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """What a replay runs with: a duration per action, and the lags of ReplayPlan."""

    duration_ns: Times
    lag_ns: Integers


class Path(NamedTuple):
    """The critical paths: step (its row in StepGroups), event, and the row of the lag that it waited for, or NONE.

    `wait_ns` is how long it waited for that beyond the event before it on its rank. An event is not executed on the
    path if only its start was waited for.
    """

    step: Integers
    event: Integers
    row: Integers
    wait_ns: Floats
    is_executed: NDArray[np.bool_]


class MakespanShares(NamedTuple):
    """Parts of the difference: the row of their step in StepGroups, and the action or the need that they come from.

    With a need, `action` is the one that had it; otherwise the need is NONE.
    """

    step: Integers
    action: Integers
    need: Integers
    share_ns: Floats

    def chosen(self, counts: NDArray[np.bool_]) -> MakespanShares:
        """Return some of the parts."""
        return MakespanShares(
            self.step[counts], self.action[counts], self.need[counts], self.share_ns[counts]
        )


def share_makespan(
    plan: ReplayPlan, groups: StepGroups, more: ReplayCosts, less: ReplayCosts, change_ns: Times
) -> MakespanShares:
    """Return what each action and need contributes to the difference of the replays of `more` and `less`.

    `change_ns` is the difference per step. The shares of a step sum to it, unless what was found on the paths is of the
    other sign or far from it. A gate of a blocking send that is open in `less` contributes what the send waits for it,
    to the action that it waits for.
    """
    extra_ns = np.asarray(more.duration_ns, dtype=np.float64) - less.duration_ns
    opens = less.lag_ns <= OPEN_NS
    is_same = more.lag_ns is less.lag_ns
    extra_lag_ns = np.zeros(len(opens))
    if not is_same:
        extra_lag_ns = np.where(opens, 0.0, np.asarray(more.lag_ns, dtype=np.float64) - less.lag_ns)
    parts: list[MakespanShares] = []
    for sample in range(SAMPLES):
        place = (sample + 0.5) / SAMPLES
        lag_ns = less.lag_ns
        if not is_same:
            lag_ns = np.where(opens, more.lag_ns, lag_ns + np.rint(place * extra_lag_ns).astype(np.int64))
        path = _walk(plan, groups, ReplayCosts(less.duration_ns + place * extra_ns, lag_ns))
        parts += _parts(plan, path, extra_ns, extra_lag_ns, opens & (more.lag_ns > OPEN_NS))
    step, action, need, share_ns = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    counts = share_ns != 0
    shares = MakespanShares(step[counts], action[counts], need[counts], share_ns[counts] / SAMPLES)
    return _scaled(shares, np.asarray(change_ns, dtype=np.float64))


def _parts(
    plan: ReplayPlan, path: Path, extra_ns: Floats, extra_lag_ns: Floats, opens: NDArray[np.bool_]
) -> Iterator[MakespanShares]:
    """Yield what the actions, needs, sends and gates on the paths contribute."""
    sends, actions = plan.sends, len(extra_ns)
    needs = len(extra_lag_ns) - 2 * len(sends.need)
    acts = path.is_executed & (path.event < actions)
    action = path.event[acts]
    yield MakespanShares(
        path.step[acts], action, np.full(len(action), NONE, dtype=np.int64), extra_ns[action]
    )
    needed = (path.row != NONE) & (path.row < needs)
    row = path.row[needed]
    yield MakespanShares(path.step[needed], path.event[needed], row, extra_lag_ns[row])
    sent = path.is_executed & (path.event >= actions)
    number = path.event[sent] - actions
    yield MakespanShares(
        path.step[sent], sends.consumer[number], sends.need[number], extra_lag_ns[needs + number]
    )
    gated = path.row >= needs
    gated[gated] = opens[path.row[gated]]
    gate = sends.gate[path.event[gated] - actions]
    after_send = gate >= actions
    gate[after_send] = sends.after[gate[after_send] - actions]
    yield MakespanShares(
        path.step[gated], gate, np.full(len(gate), NONE, dtype=np.int64), path.wait_ns[gated]
    )


def _walk(plan: ReplayPlan, groups: StepGroups, costs: ReplayCosts) -> Path:
    """Return the critical paths of a replay."""
    times = replay_events(plan, costs.duration_ns, costs.lag_ns)
    count = len(plan.order)
    ends_ns = times[plan.last]
    is_last = ends_ns == groups.last_of_ranks(ends_ns)[groups.step_of_rank]
    step, first = np.unique(groups.step_of_rank[is_last], return_index=True)
    place, lags = plan.last[is_last][first].astype(np.int64), np.append(costs.lag_ns, 0)
    executed = np.ones(len(place), dtype=np.bool_)
    found: list[Path] = []
    while len(place):
        before, row, wait_ns = _binding(plan, times, lags, place)
        found.append(Path(step, plan.order[place].astype(np.int64), row, wait_ns, executed))
        goes_on = before != count
        step, before = step[goes_on], before[goes_on]
        executed = before < count
        place = np.where(executed, before, before - count - 1)
    if not found:
        none = np.empty(0, dtype=np.int64)
        return Path(none, none, none, none.astype(np.float64), none.astype(np.bool_))
    return Path(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def _binding(
    plan: ReplayPlan, times: Times, lags: Integers, place: Integers
) -> tuple[Integers, Integers, Floats]:
    """Return what each event waited for last: its place (or that of its start), the row of its lag, and how long."""
    before = plan.before[place].astype(np.int64)
    row = np.full(len(place), NONE, dtype=np.int64)
    own = ready = times[before]
    for needs in plan.needs:
        rows, producer = needs.row[place], needs.producer[place]
        arrived = times[producer] + lags[rows]
        is_later = (rows != NONE) & (arrived > ready)
        before[is_later], row[is_later] = producer[is_later], rows[is_later]
        ready = np.where(is_later, arrived, ready)
    return before, row, np.asarray(ready - own, dtype=np.float64)


def _scaled(shares: MakespanShares, change_ns: Floats) -> MakespanShares:
    """Return the shares scaled to the exact change of their step, where they are close to it."""
    found = np.bincount(shares.step, weights=shares.share_ns, minlength=len(change_ns))
    ratio = np.divide(change_ns, found, out=np.ones(len(change_ns)), where=found != 0)
    is_close = (ratio >= 1 / MOST_SCALED) & (ratio <= MOST_SCALED)
    return shares._replace(share_ns=shares.share_ns * np.where(is_close, ratio, 1.0)[shares.step])
