"""Replays: when every action would end if durations or transfer times were different.

Each action starts when the previous action of its rank has ended and all its inputs have arrived; the order on every
rank stays as measured. All ranks are free at 0, so ends count from the start of the step. Actions are replayed level by
level: a level is everything that is ready at once, in all pipelines and steps, so that the work is done on whole
columns however the steps differ. The what-if analysis of stragglers in arXiv 2505.05713 replays in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions

    Integers = NDArray[np.int64]
    Indices = NDArray[np.int32]
    Times = NDArray[np.float64] | NDArray[np.int64]

NONE = -1


class Needs(NamedTuple):
    """At most one need per action, in the order of the plan: the place of its producer, and its row in `needs`."""

    producer: Indices
    row: Indices


@dataclass(frozen=True)
class ReplayPlan:
    """An order in which actions can be replayed, and where each finds what it waits for.

    `order` lists the actions level by level, `levels` the bounds of the levels. `before` is the place in `order` of the
    previous action of the same rank and step. `needs` has as many columns as the most results that one action needs
    from elsewhere; results of the same rank are covered by its order. A place of len(order) means none.
    """

    order: Indices
    levels: Integers
    before: Indices
    needs: tuple[Needs, ...]
    diagnostics: tuple[Diagnostic, ...]


def plan_replay(actions: Actions) -> ReplayPlan:
    """Return a plan for replaying the actions.

    Needs that form a cycle with the order of the ranks, which no run can have executed, are cut where time went
    backwards; a diagnostic counts them.
    """
    edges = _needs_from_elsewhere(actions)
    # Only needs from other ranks are edges: a need of the same rank is met by the order of that rank already.
    order, levels, cut = _sort_by_level(actions, edges)
    diagnostics: tuple[Diagnostic, ...] = ()
    if len(cut):
        message = "dependencies form a cycle with the order of the ranks; they are left out of replays"
        diagnostics = (Diagnostic("warning", message, count=len(cut), code="actions.cyclic"),)
        edges = _Edges(*(np.delete(column, cut) for column in edges))
    count = len(order)
    place = np.empty(count + 1, dtype=np.int32)
    place[order] = np.arange(count, dtype=np.int32)
    place[count] = count
    before = np.arange(-1, count - 1, dtype=np.int32)
    before[actions.table["place"].to_numpy() == 0] = count
    needs = []
    for consumer, producer, row in _one_each(edges):
        producers = np.full(count, count, dtype=np.int32)
        rows = np.full(count, NONE, dtype=np.int32)
        producers[place[consumer]] = place[producer]
        rows[place[consumer]] = row
        needs.append(Needs(producers, rows))
    return ReplayPlan(order, levels, place[before[order]], tuple(needs), diagnostics)


def replay(plan: ReplayPlan, duration_ns: Times, lag_ns: Times) -> Times:
    """Return when every action ends, from the start of its step, in the unit and type of `duration_ns`.

    `duration_ns` has a value per action, `lag_ns` one per row of `needs`: the time from the end of the producer to the
    arrival of its result. With a second axis in both, every column is a replay of its own.
    """
    count = len(plan.order)
    lasting = duration_ns[plan.order]
    # A place without a need has row -1 and reads the appended 0, so the loop below needs no mask.
    padded = np.concatenate([lag_ns, np.zeros_like(lag_ns, shape=(1, *lag_ns.shape[1:]))])
    lags = [padded[needs.row].astype(lasting.dtype) for needs in plan.needs]
    # The last entry is the end of "no action": always 0, the start of the step.
    ends = np.zeros((count + 1, *lasting.shape[1:]), dtype=lasting.dtype)
    for first, last in zip(plan.levels[:-1].tolist(), plan.levels[1:].tolist(), strict=True):
        level = slice(first, last)
        ready = ends[plan.before[level]]
        for needs, lag in zip(plan.needs, lags, strict=True):
            np.maximum(ready, ends[needs.producer[level]] + lag[level], out=ready)
        np.add(ready, lasting[level], out=ends[level])
    by_action = np.empty_like(lasting)
    by_action[plan.order] = ends[:count]
    return by_action


def ready_times(plan: ReplayPlan, end_ns: Integers, lag_ns: Integers) -> Integers:
    """Return when every action could have started, given the measured ends of all actions.

    An action that had nothing to wait for has the smallest int64.
    """
    never = np.iinfo(np.int64).min
    ends = np.append(end_ns[plan.order], never)
    ready = ends[plan.before]
    for needs in plan.needs:
        has = needs.row != NONE
        arrived = ends[needs.producer[has]] + lag_ns[needs.row[has]]
        ready[has] = np.maximum(ready[has], arrived)
    by_action = np.empty_like(ready)
    by_action[plan.order] = ready
    return by_action


class _Edges(NamedTuple):
    """Needs between ranks as pairs of actions, with their row of `needs`."""

    consumer: Indices
    producer: Indices
    row: Indices


def _needs_from_elsewhere(actions: Actions) -> _Edges:
    """Return the needs that the order of a rank does not fulfil by itself."""
    consumer, producer = (actions.needs[name].to_numpy() for name in ("action", "needs"))
    here = ~actions.needs["is_remote"].to_numpy() & (producer < consumer)
    rows = np.flatnonzero(~here)
    return _Edges(*(column.astype(np.int32) for column in (consumer[rows], producer[rows], rows)))


def _one_each(edges: _Edges) -> list[_Edges]:
    """Return the edges in as few parts as leave every consumer at most one edge in each."""
    parts = []
    while len(edges.consumer):
        last = np.zeros(len(edges.consumer), dtype=np.bool_)
        last[:-1] = edges.consumer[1:] == edges.consumer[:-1]  # sorted by consumer, as needs are
        parts.append(_Edges(*(column[~last] for column in edges)))
        edges = _Edges(*(column[last] for column in edges))
    return parts


def _sort_by_level(actions: Actions, edges: _Edges) -> tuple[Indices, Integers, Integers]:
    """Return the actions level by level, the bounds of the levels, and which edges were cut."""
    follows = actions.table["place"].to_numpy() > 0
    next_on_rank = np.full(len(follows), NONE, dtype=np.int32)
    next_on_rank[:-1][follows[1:]] = np.flatnonzero(follows[1:]) + 1
    consumers = [next_on_rank, *_consumers(edges, len(follows))]
    waits_for = follows.astype(np.int32) + np.bincount(edges.consumer, minlength=len(follows)).astype(
        np.int32
    )
    left = np.arange(len(edges.row))
    levels: list[Indices] = []
    ready = np.flatnonzero(waits_for == 0).astype(np.int32)
    done = 0
    while done < len(follows):
        if not len(ready):
            left, ready = _cut_cycles(actions, edges, left, waits_for)
            consumers = [next_on_rank, *_consumers(_Edges(*(column[left] for column in edges)), len(follows))]
        levels.append(ready)
        done += len(ready)
        waits_for[ready] = NONE  # what has run must not be found blocked below
        ready = _next_level(ready, consumers, waits_for)
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


def _next_level(ready: Indices, consumers: list[Indices], waits_for: Indices) -> Indices:
    """Return the actions that waited only for the given ones, and update the number of inputs they wait for."""
    freed = []
    for column in consumers:
        waiting = column[ready]
        waiting = waiting[waiting >= 0]
        np.subtract.at(waits_for, waiting, 1)
        freed.append(waiting[waits_for[waiting] == 0])
    return np.unique(np.concatenate(freed))  # both producers of a pair may be in the same level


def _cut_cycles(
    actions: Actions, edges: _Edges, left: Integers, waits_for: Indices
) -> tuple[Integers, Indices]:
    """Return the remaining edges after cycles among blocked actions are cut, and the actions that can run then.

    Edges that go backwards in time are cut first. Only if that frees no action, as when both ends started at the same
    time, edges without duration are cut too, and finally all of them: the order of a rank alone has no cycle.
    """
    start_ns = actions.table["start_ns"].to_numpy()
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
