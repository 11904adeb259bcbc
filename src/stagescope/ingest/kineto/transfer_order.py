"""Match the transfers of a 1F1B rank to actions by the order of sends and receives alone.

Every action runs after its receive and before its send, and 1F1B fixes the order of actions on each rank. The order of
sends and receives of a step is therefore fixed too, and depends only on the position in the pipeline and the number of
micro-batches (torch 2.13.0, schedules.py, `Schedule1F1B._step_microbatches`). Steps with any other order are ignored.
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
    """A send or receive, from its call until its wait returned; `issued_ns` is between the two."""

    sends: bool
    called_ns: int
    issued_ns: int
    end_ns: int
    title: str


class Item(NamedTuple):
    """An action, or a transfer (`work`) of it; `order` numbers the action's forward over all steps."""

    kind: str
    order: int
    work: Work | None = None


class Matched(NamedTuple):
    """The complete steps, each with its items in time order, and the number of transfers that belong to none."""

    steps: list[list[Item]]
    left_out: int


def match_transfers(
    works: Sequence[Work], breaks_ns: Sequence[int], groups: Sequence[tuple[int, ...]], rank: int
) -> Matched:
    """Return the steps of a rank whose transfers have the order of 1F1B.

    `works` are in the order of issue, `breaks_ns` are times between steps. The pipeline is the process group whose
    position explains complete steps. If several positions do, with different results, nothing is returned.
    """
    breaks = sorted(breaks_ns)
    segments = [list(own) for _, own in groupby(works, key=lambda work: bisect_left(breaks, work.issued_ns))]
    places = {(group.index(rank), len(group)) for group in groups if rank in group and len(group) > 1}
    solutions: list[list[list[Item]]] = []
    for place in sorted(places):
        steps = _steps(segments, *place)
        if steps and steps not in solutions:
            solutions.append(steps)
    if len(solutions) != 1:
        return Matched([], len(works))
    explained = sum(item.work is not None for items in solutions[0] for item in items)
    return Matched(solutions[0], len(works) - explained)


def _steps(segments: Sequence[Sequence[Work]], stage: int, stages: int) -> list[list[Item]]:
    """Return the items of every complete step, assuming that the rank has this stage."""
    ends = {"F": (stage > 0, stage < stages - 1), "B": (stage < stages - 1, stage > 0)}
    steps: list[list[Item]] = []
    first = 0
    for works in segments:
        # The number of sends fixes the number of micro-batches: each action sends once, except at the pipeline's ends.
        sends = sum(work.sends for work in works)
        # A remainder means an incomplete step, or a schedule other than 1F1B.
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
