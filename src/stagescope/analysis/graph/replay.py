"""Replays: when every action would end, in the measured order, had durations or transfers been others.

Each action starts as soon as the one before it on its rank has ended and all that it needs has arrived. All
ranks are free at 0, so an end counts from the start of the step. Actions are run level by level: a level is
all that is ready at once, in every pipeline and step, so that the work is done by whole columns however the steps
differ. (The what-if analysis of stragglers in arXiv 2505.05713 replays in the same way.)
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
    """At most one need per action, in the plan's order: where its producer is, and its row in `needs`."""

    producer: Indices
    row: Indices


@dataclass(frozen=True)
class ReplayPlan:
    """In which order actions can be replayed, and where each finds what it waits for.

    `order` lists the actions level by level, `levels` where each level begins, and where the last ends.
    `before` is the place in `order` of the previous action of the same rank and step. There are as many
    `needs` as the most that one action has from elsewhere; what its own rank did before is no need.
    A place of len(order) stands for none.
    """

    order: Indices
    levels: Integers
    before: Indices
    needs: tuple[Needs, ...]
    diagnostics: tuple[Diagnostic, ...]


def plan_replay(actions: Actions) -> ReplayPlan:
    """Return how the actions can be replayed.

    Needs that go in a circle, which no run can have done, are cut where time went backwards, and counted.
    """
    edges = _needs_from_elsewhere(actions)
    order, levels, cut = _sort_by_level(actions, edges)
    said: tuple[Diagnostic, ...] = ()
    if len(cut):
        message = "needs go in a circle with the order of the ranks; they are left out of replays"
        said = (Diagnostic("warning", message, count=len(cut)),)
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
    return ReplayPlan(order, levels, place[before[order]], tuple(needs), said)


def replay(plan: ReplayPlan, duration_ns: Times, lag_ns: Times) -> Times:
    """Return when every action ends, from the start of its step, in the unit and type of `duration_ns`.

    `duration_ns` has a value per action, `lag_ns` one per row of `needs`: what lies between the end of the
    producer and the arrival of its result.
    """
    count = len(plan.order)
    lasting = duration_ns[plan.order]
    lags = [np.append(lag_ns, 0)[needs.row].astype(lasting.dtype) for needs in plan.needs]
    ends = np.zeros(count + 1, dtype=lasting.dtype)
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
    """Return when every action could have started, given when all of them ended, on one clock.

    Where nothing had to be waited for it is the smallest number there is.
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
    """Who needs what from elsewhere, as actions, and the row of `needs` that says so."""

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
    """Return the actions level by level, the bounds of the levels, and which edges had to be cut."""
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
            left, ready = _cut_circles(actions, edges, left, waits_for)
            consumers = [next_on_rank, *_consumers(_Edges(*(column[left] for column in edges)), len(follows))]
        levels.append(ready)
        done += len(ready)
        waits_for[ready] = NONE  # so that what has run is not found to be stuck
        ready = _next_level(ready, consumers, waits_for)
    cut = np.setdiff1d(np.arange(len(edges.row)), left, assume_unique=True)
    order = np.concatenate(levels) if levels else np.empty(0, dtype=np.int32)
    return order, np.cumsum([0, *map(len, levels)]), cut


def _consumers(edges: _Edges, count: int) -> list[Indices]:
    """Return per action who needs it, in as many columns as the most consumers that one has."""
    columns = []
    consumer, producer = edges.consumer, edges.producer
    while len(consumer):
        # One pair may need two results of another one: equal edges are counted, so that each has a place.
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
    """Return the actions that waited for nothing but the given ones, counting those as done."""
    freed = []
    for column in consumers:
        waiting = column[ready]
        waiting = waiting[waiting >= 0]
        np.subtract.at(waits_for, waiting, 1)
        freed.append(waiting[waits_for[waiting] == 0])
    return np.unique(np.concatenate(freed))  # two producers of one pair may end in the same level


def _cut_circles(
    actions: Actions, edges: _Edges, left: Integers, waits_for: Indices
) -> tuple[Integers, Indices]:
    """Return which edges are left once circles among what is stuck are cut, and the actions that can run then.

    Cut is what goes backwards in time. Only if no action is free after that, as where both ends started at the
    same moment, those that take no time are cut too, and last of all everything: a rank's own order has no circle.
    """
    start_ns = actions.table["start_ns"].to_numpy()
    consumer, producer = edges.consumer[left], edges.producer[left]
    stuck = (waits_for[consumer] > 0) & (waits_for[producer] > 0)
    backwards_ns = start_ns[producer] - start_ns[consumer]
    for cut in (stuck & (backwards_ns > 0), stuck & (backwards_ns >= 0), stuck):
        waits = waits_for.copy()
        np.subtract.at(waits, consumer[cut], 1)
        ready = np.flatnonzero(waits == 0).astype(np.int32)
        if len(ready):
            break
    waits_for[:] = waits
    return left[~cut], ready
