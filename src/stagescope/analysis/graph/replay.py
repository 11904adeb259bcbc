"""Replays: when every action would end if durations or transfer times were different.

Each action starts when the previous action of its rank has ended and all its inputs have arrived; the order on every
rank stays as measured. A blocking send (blocking_sends.py) is an event in that order, too: it begins when the rank has
got to it and its gate is open, and lasts as long as its transfer. All ranks are free at 0, so ends count from the start
of the step. Events are replayed level by level: a level is everything that is ready at once, in all pipelines and
steps, so that the work is done on whole columns however the steps differ. The what-if analysis of stragglers in arXiv
2505.05713 replays in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from stagescope.analysis.graph.blocking_sends import NO_GATE, find_blocking_sends
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.blocking_sends import BlockingSends

    Integers = NDArray[np.int64]
    Indices = NDArray[np.int32]
    Times = NDArray[np.float64] | NDArray[np.int64]

NONE = -1


OPEN_NS = -(1 << 60)
"""The lag of a gate that is always open: it lets its send go before everything. Exact as a float, too."""


class Needs(NamedTuple):
    """At most one need per event, in the order of the plan: the place of its producer, and the row of its lag."""

    producer: Indices
    row: Indices


@dataclass(frozen=True)
class ReplayPlan:
    """An order in which actions and blocking sends can be replayed, and where each finds what it waits for.

    An event is an action, by its number, or a blocking send: the number of actions plus its number in `sends`. `order`
    lists the events level by level, `levels` the bounds of the levels. `before` is the place in `order` of the previous
    event of the same rank and step. `needs` has as many columns as the most results that one event needs from
    elsewhere; results of the same rank are covered by its order. A place of len(order) means none; a place that is
    len(order) + 1 larger than that of an event is its start instead of its end. `last` is the place of the last action
    of every rank in every step.

    Lags are one array: of every row of needs, then how long every blocking send lasts, then the lag of its gate.
    """

    order: Indices
    levels: Integers
    before: Indices
    needs: tuple[Needs, ...]
    diagnostics: tuple[Diagnostic, ...]
    sends: BlockingSends
    last: Indices

    @property
    def actions(self) -> int:
        """The number of actions."""
        return len(self.order) - len(self.sends.need)


def plan_replay(actions: Actions, sends: BlockingSends | None = None) -> ReplayPlan:
    """Return a plan for replaying the actions; `sends` is from find_blocking_sends, None: it is computed here.

    Needs that form a cycle with the order of the ranks, which no run can have executed, are cut where time went
    backwards; a diagnostic counts them.
    """
    sends = find_blocking_sends(actions) if sends is None else sends
    line = _line_up(actions, sends)
    edges = _edges_of(actions, sends)
    # Only needs from other ranks are edges: a need of the same rank is met by the order of that rank already.
    order, levels, cut = _sort_by_level(line, edges)
    diagnostics: tuple[Diagnostic, ...] = ()
    if len(cut):
        message = "dependencies form a cycle with the order of the ranks; they are left out of replays"
        diagnostics = (Diagnostic("warning", message, count=len(cut), code="actions.cyclic"),)
        kept = np.ones(len(edges.row), dtype=np.bool_)
        kept[cut] = False
        edges = edges.at(kept)
    count = len(order)
    place = np.empty(count + 1, dtype=np.int32)
    place[order] = np.arange(count, dtype=np.int32)
    place[count] = count
    needs = []
    for consumer, producer, row, is_start in _one_each(edges):
        producers = np.full(count, count, dtype=np.int32)
        rows = np.full(count, NONE, dtype=np.int32)
        producers[place[consumer]] = place[producer] + is_start * (count + 1)
        rows[place[consumer]] = row
        needs.append(Needs(producers, rows))
    last = place[line.last]
    return ReplayPlan(order, levels, place[line.previous[order]], tuple(needs), diagnostics, sends, last)


def replay(plan: ReplayPlan, duration_ns: Times, lag_ns: Times, released_ns: Times | None = None) -> Times:
    """Return when every action ends, from the start of its step, in the unit and type of `duration_ns`.

    `duration_ns` has a value per action. `lag_ns` has the lags of ReplayPlan, of which the first are the times from the
    end of a producer to the arrival of its result. With a second axis in both, every column is a replay of its own.
    `released_ns` is before when no action may start; None: nothing is before the start of its step.
    """
    times = replay_events(plan, duration_ns, lag_ns, released_ns)[: len(plan.order)]
    by_action: Times = np.empty_like(duration_ns)
    if not len(plan.sends.need):  # the common case: no copy of the order
        by_action[plan.order] = times
        return by_action
    is_action = plan.order < len(duration_ns)
    by_action[plan.order[is_action]] = times[is_action]
    return by_action


def replay_ranks(plan: ReplayPlan, duration_ns: Times, lag_ns: Times) -> Times:
    """Return when every rank ends in every step, as `replay` does for actions; no duration may be negative."""
    times: Times = replay_events(plan, duration_ns, lag_ns)[plan.last]
    return times


def replay_events(
    plan: ReplayPlan, duration_ns: Times, lag_ns: Times, released_ns: Times | None = None
) -> Times:
    """Return when every event ends, by its place, then 0 for no event; with sends, also when every event starts."""
    count, sends = len(plan.order), len(plan.sends.need)
    if sends:
        of_sends = lag_ns[len(lag_ns) - 2 * sends : len(lag_ns) - sends]
        duration_ns = np.concatenate([duration_ns, of_sends.astype(duration_ns.dtype)])
    lasting = duration_ns[plan.order]
    lags = None
    if lag_ns.any():
        # A place without a need has row -1 and reads the appended 0, so the loop below needs no mask.
        lags = np.concatenate([lag_ns, np.zeros_like(lag_ns, shape=(1, *lag_ns.shape[1:]))]).astype(
            lasting.dtype
        )
    # Entry `count` is the end of "no event": always 0, the start of the step. The starts follow after it.
    entries = (count + 1) * (2 if sends else 1)
    times = cast("Times", np.zeros((entries, *lasting.shape[1:]), dtype=lasting.dtype))
    released = None if released_ns is None else np.append(released_ns, np.zeros(sends))[plan.order]
    for first, last in zip(plan.levels[:-1].tolist(), plan.levels[1:].tolist(), strict=True):
        level = slice(first, last)
        ready = times[plan.before[level]]
        if released is not None:
            ready = np.maximum(ready, released[level].astype(ready.dtype))
        for needs in plan.needs:
            arrived = times[needs.producer[level]]
            if lags is not None:
                np.add(arrived, lags[needs.row[level]], out=arrived)
            np.maximum(ready, arrived, out=ready)
        np.add(ready, lasting[level], out=times[level])
        if sends:
            times[count + 1 + first : count + 1 + last] = ready
    return times


def ready_times(plan: ReplayPlan, end_ns: Integers, lag_ns: Integers) -> Integers:
    """Return when every action could have started, given the measured ends of all actions.

    An action that had nothing to wait for has the smallest int64.
    """
    never = np.iinfo(np.int64).min
    count = len(plan.order)
    ends = np.append(np.append(end_ns, plan.sends.end_ns)[plan.order], never)
    ready = ends[plan.before]
    for needs in plan.needs:
        has = (needs.row != NONE) & (needs.producer < count)
        arrived = ends[needs.producer[has]] + lag_ns[needs.row[has]]
        ready[has] = np.maximum(ready[has], arrived)
    by_event = np.empty_like(ready)
    by_event[plan.order] = ready
    return by_event[: plan.actions]


class _Line(NamedTuple):
    """The previous event of every event on its rank in its step (the number of events: none), and when each started.

    `last` is the last action of every rank in every step.
    """

    previous: Indices
    start_ns: Integers
    last: Integers


def _line_up(actions: Actions, sends: BlockingSends) -> _Line:
    """Return the events of all ranks in their order: the sends after an action come before the next one."""
    count = actions.table.height
    events = count + len(sends.need)
    behind = np.append(np.arange(count), sends.after)
    in_line = np.argsort(behind, kind="stable") if len(sends.need) else behind
    previous = np.empty(events, dtype=np.int32)
    previous[in_line] = np.append(events, in_line[:-1])[:events]
    first = np.flatnonzero(actions.table["place"].to_numpy() == 0)
    previous[first] = events
    last = np.append(first[1:], count)[: len(first)] - 1
    return _Line(previous, np.append(actions.table["start_ns"].to_numpy(), sends.left_ns), last)


class _Edges(NamedTuple):
    """Needs between ranks: pairs of events, the row of their lag, and whether the start of the producer counts."""

    consumer: Indices
    producer: Indices
    row: Indices
    is_start: NDArray[np.bool_]

    def at(self, which: Integers | NDArray[np.bool_]) -> _Edges:
        """Return some of the edges."""
        return _Edges(self.consumer[which], self.producer[which], self.row[which], self.is_start[which])


def _edges_of(actions: Actions, sends: BlockingSends) -> _Edges:
    """Return what the order of a rank does not fulfil by itself: needs of actions, then gates of sends."""
    consumer, producer = (actions.needs[name].to_numpy() for name in ("action", "needs"))
    count, number = actions.table.height, np.arange(len(sends.need))
    made_by = producer.astype(np.int64)
    made_by[sends.carried] = count + sends.carriers()
    here = ~actions.needs["is_remote"].to_numpy() & (producer < consumer)
    rows, gated = np.flatnonzero(~here), np.flatnonzero(sends.gate != NO_GATE)
    gate_rows = actions.needs.height + len(number) + gated
    return _Edges(
        np.append(consumer[rows], count + gated).astype(np.int32),
        np.append(made_by[rows], sends.gate[gated]).astype(np.int32),
        np.append(rows, gate_rows).astype(np.int32),
        np.append(np.zeros(len(rows), dtype=np.bool_), sends.gate_is_start[gated]),
    )


def _one_each(edges: _Edges) -> list[_Edges]:
    """Return the edges in as few parts as leave every consumer at most one edge in each."""
    parts = []
    while len(edges.consumer):
        last = np.zeros(len(edges.consumer), dtype=np.bool_)
        last[:-1] = edges.consumer[1:] == edges.consumer[:-1]  # sorted by consumer, as needs are
        parts.append(edges.at(~last))
        edges = edges.at(last)
    return parts


def _sort_by_level(line: _Line, edges: _Edges) -> tuple[Indices, Integers, Integers]:
    """Return the events level by level, the bounds of the levels, and the edges that were cut."""
    count = len(line.previous)
    follows = line.previous < count
    next_on_rank = np.full(count, NONE, dtype=np.int32)
    next_on_rank[line.previous[follows]] = np.flatnonzero(follows)
    consumers = [next_on_rank, *_consumers(edges, count)]
    needed = np.bincount(edges.consumer, minlength=count).astype(np.int32)
    is_single = int(needed.max(initial=0)) <= 1
    waits_for = follows.astype(np.int32) + needed
    left = np.arange(len(edges.row))
    levels: list[Indices] = []
    ready = np.flatnonzero(waits_for == 0).astype(np.int32)
    done = 0
    while done < count:
        if not len(ready):
            left, ready = _cut_cycles(line, edges, left, waits_for)
            consumers = [next_on_rank, *_consumers(edges.at(left), count)]
        levels.append(ready)
        done += len(ready)
        waits_for[ready] = NONE  # what has run must not be found blocked below
        ready = _next_level(ready, consumers, waits_for, is_single=is_single)
    cut = np.setdiff1d(np.arange(len(edges.row)), left, assume_unique=True)
    order = np.concatenate(levels) if levels else np.empty(0, dtype=np.int32)
    return order, np.cumsum([0, *map(len, levels)]), cut


def _consumers(edges: _Edges, count: int) -> list[Indices]:
    """Return the consumers of every action, in as many columns as one action has at most."""
    columns = []
    consumer, producer = edges.consumer, edges.producer
    while len(consumer):
        # One pair may need two results of another one: equal edges each need a column of their own.
        numbers = np.arange(len(consumer))
        taken = np.full(count, NONE, dtype=np.int64)
        taken[producer] = numbers
        left = taken[producer] != numbers
        column = np.full(count, NONE, dtype=np.int32)
        column[producer[~left]] = consumer[~left]
        columns.append(column)
        consumer, producer = consumer[left], producer[left]
    return columns


def _next_level(ready: Indices, consumers: list[Indices], waits_for: Indices, *, is_single: bool) -> Indices:
    """Return the actions that waited only for the given ones, and update the number of inputs they wait for.

    `is_single` is whether no action has two edges, so that it is at most once among the consumers of a level.
    """
    freed = []
    for column in consumers:
        waiting = column[ready]
        waiting = waiting[waiting >= 0]
        if is_single:
            waits_for[waiting] -= 1
        else:
            np.subtract.at(waits_for, waiting, 1)
        freed.append(waiting[waits_for[waiting] == 0])
    found = np.concatenate(freed)
    return (
        np.sort(found) if is_single else np.unique(found)
    )  # both producers of a pair may be in the same level


def _cut_cycles(line: _Line, edges: _Edges, left: Integers, waits_for: Indices) -> tuple[Integers, Indices]:
    """Return the remaining edges after cycles among blocked actions are cut, and the actions that can run then.

    Edges that go backwards in time are cut first. Only if that frees no action, as when both ends started at the same
    time, edges without duration are cut too, and finally all of them: the order of a rank alone has no cycle.
    """
    start_ns = line.start_ns
    consumer, producer = edges.consumer[left], edges.producer[left]
    blocked = (waits_for[consumer] > 0) & (waits_for[producer] > 0)
    backwards_ns = start_ns[producer] - start_ns[consumer]
    for cut in (blocked & (backwards_ns > 0), blocked & (backwards_ns >= 0), blocked):
        waits = waits_for.copy()
        np.subtract.at(waits, consumer[cut], 1)
        ready = np.flatnonzero(waits == 0).astype(np.int32)
        if len(ready):
            break
    waits_for[:] = waits
    return left[~cut], ready
