"""Which action each transfer of a 1F1B rank belongs to, by the order of sends and receives alone.

Every action is run behind its receive and before its send, and each rank's actions have one order: so the sends and
receives of a step have one order too, which depends on the rank's place in its pipeline and the number of
micro-batches (torch 2.13.0, schedules.py, `Schedule1F1B._step_microbatches`). A step whose transfers come in any
other order tells nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.orders.one_f_one_b import rank_order

if TYPE_CHECKING:
    from collections.abc import Sequence

KINDS = {"F": "forward", "B": "backward"}


class Work(NamedTuple):
    """A send or receive, from when it was asked for until its wait returned; `issued_ns` is between the two."""

    sends: bool
    called_ns: int
    issued_ns: int
    end_ns: int
    title: str


class Item(NamedTuple):
    """A action in its turn, or a transfer of it; `order` is the number of the action's forward, counted over all steps."""

    kind: str
    order: int
    work: Work | None = None


class Matched(NamedTuple):
    """The steps that are whole, each with its items in the order of time, and how many transfers are of none."""

    steps: list[list[Item]]
    left_out: int


def match_transfers(
    works: Sequence[Work], breaks_ns: Sequence[int], groups: Sequence[tuple[int, ...]], rank: int
) -> Matched:
    """Return the steps of a rank whose transfers are those of 1F1B.

    `works` come in the order in which they were issued, `breaks_ns` are moments between steps. One of the process
    `groups` is the pipeline: the one that explains whole steps. Where several do, and not alike, nothing is told.
    """
    breaks = sorted(breaks_ns)
    segments = [list(own) for _, own in groupby(works, key=lambda work: bisect_left(breaks, work.issued_ns))]
    places = {(group.index(rank), len(group)) for group in groups if rank in group and len(group) > 1}
    told: list[list[list[Item]]] = []
    for place in sorted(places):
        steps = _steps(segments, *place)
        if steps and steps not in told:
            told.append(steps)
    if len(told) != 1:
        return Matched([], len(works))
    explained = sum(item.work is not None for items in told[0] for item in items)
    return Matched(told[0], len(works) - explained)


def _steps(segments: Sequence[Sequence[Work]], stage: int, stages: int) -> list[list[Item]]:
    """Return the items of every step that is whole, if the rank has this place."""
    ends = {"F": (stage > 0, stage < stages - 1), "B": (stage < stages - 1, stage > 0)}
    steps: list[list[Item]] = []
    first = 0
    for works in segments:
        sends = sum(work.sends for work in works)
        microbatches, rest = divmod(sends, sum(sent for _, sent in ends.values()))
        actions = rank_order(stage, stages, microbatches) if microbatches and not rest else []
        expected = [
            (KINDS[action.kind], first + action.microbatch, sends_it)
            for action in actions
            for sends_it, happens in (
                (False, ends[action.kind][0]),
                (None, True),
                (True, ends[action.kind][1]),
            )
            if happens
        ]
        if actions and [sends_it for *_, sends_it in expected if sends_it is not None] == [
            w.sends for w in works
        ]:
            own = iter(works)
            steps.append(
                [
                    Item(kind, number, None if sends_it is None else next(own))
                    for kind, number, sends_it in expected
                ]
            )
            first += microbatches
    return steps
