"""Which ranks hold up a training: those that all waits lead to, directly or through other ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stagescope.analysis.hangs.conditions import (
    BUSY,
    ENDED,
    GONE,
    QUIET_AFTER_S,
    RUNNING,
    SILENT,
    WAITING,
    condition_of,
)
from stagescope.analysis.hangs.waiting import Mismatch, Waiting, mismatches_of, waiting_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stagescope.model.process_states import ProcessState

INTERRUPT = "KeyboardInterrupt"
AWAITED_S = 60.0
"""Ranks are expected within this time after the first one has begun to record."""
AT_ONCE_S = 2.0
"""Ranks that wait for one that fails stop so soon before or after."""
TRAINS, HANGS, IS_OVER = "trains", "hangs", "is over"
"""Outcomes: all ranks that have not ended record spans; at least one has stopped; all have ended."""


@dataclass(frozen=True)
class HangReport:
    """Why a training does not go on.

    states
        Of each rank with a recording, in the order of ranks.
    conditions
        Of each of these ranks: one of conditions.py.
    waiting
        The ranks that each waiting rank waits for.
    outcome
        `TRAINS`, `HANGS` or `IS_OVER`.
    culprits
        The ranks that all waits lead to and that wait for no rank themselves, and those of circles.
    circles
        Ranks that wait for each other, in this order.
    mismatches
        Collectives that ranks of one group call with different operations.
    missing
        Ranks that were declared and have no recording.
    awaited
        Ranks that were declared and may still be starting: the first recording began less than AWAITED_S ago.
    """

    states: tuple[ProcessState, ...]
    conditions: Mapping[int, str]
    waiting: Mapping[int, tuple[Waiting, ...]]
    outcome: str
    culprits: tuple[int, ...]
    circles: tuple[tuple[int, ...], ...]
    mismatches: tuple[Mismatch, ...]
    missing: tuple[int, ...]
    awaited: tuple[int, ...] = ()

    @property
    def is_hung(self) -> bool:
        """Whether at least one rank holds up others, or has been killed."""
        return self.outcome == HANGS

    @property
    def has_stopped(self) -> bool:
        """Whether the training hangs, or is over because ranks were killed or failed."""
        return (
            self.is_hung
            or GONE in self.conditions.values()
            or (self.outcome == IS_OVER and bool(self.failed))
        )

    @property
    def failed(self) -> tuple[int, ...]:
        """The ranks that an exception has ended, or that ended themselves with an exit status other than 0.

        An interrupt, such as Ctrl-C, is no exception.
        """
        return tuple(state.rank for state in self.states if _has_failed(state))

    @property
    def first_to_end(self) -> int | None:
        """The rank that ended first, if the training is over because ranks failed; None if it was killed."""
        if self.outcome != IS_OVER or not self.failed or GONE in self.conditions.values():
            return None
        ended = [(state.ended_ns, state.rank) for state in self.states if state.ended_ns is not None]
        return min(ended)[1] if ended else None

    def chain_of(self, rank: int) -> tuple[Waiting, ...]:
        """Return what a rank waits for, what that rank waits for, and so on to a culprit; each rank once."""
        found: list[Waiting] = []
        seen = {rank}
        while True:
            following = [each for each in self.waiting.get(rank, ()) if each.rank not in seen]
            if not following:
                return tuple(found)
            # A rank that waits for several is held up by the one that does not wait itself.
            following.sort(key=lambda each: (bool(self.waiting.get(each.rank)), each.rank))
            found.append(following[0])
            rank = following[0].rank
            seen.add(rank)


def find_hang(states: Sequence[ProcessState], quiet_after_s: float = QUIET_AFTER_S) -> HangReport:
    """Return what keeps a training from going on, from the states of its processes."""
    by_rank = {state.rank: state for state in states}
    conditions = {state.rank: condition_of(state, quiet_after_s) for state in states}
    waiting = {
        rank: waiting_of(by_rank[rank], by_rank)
        for rank, condition in conditions.items()
        if condition == WAITING
    }
    mismatches = tuple(mismatches_of([by_rank[rank] for rank in waiting]))
    sizes = [state.world_size for state in states if state.world_size is not None]
    absent = tuple(sorted(set(range(max(sizes, default=0))) - by_rank.keys()))
    began_s = [state.began_s for state in states if state.began_s is not None]
    is_starting = max(began_s, default=AWAITED_S) < AWAITED_S
    missing, awaited = ((), absent) if is_starting else (absent, ())
    circles = _circles(waiting)
    outcome = _outcome(conditions, is_starting=bool(awaited))
    failed = _first_failed(states, conditions)
    culprits = _culprits(conditions, waiting, circles, mismatches, failed) if outcome == HANGS else ()
    return HangReport(
        tuple(states), conditions, waiting, outcome, culprits, circles, mismatches, missing, awaited
    )


def _outcome(conditions: Mapping[int, str], *, is_starting: bool) -> str:
    """Return the outcome. While other ranks are starting, a rank waits for them: in a transfer, or in a rendezvous."""
    found = set(conditions.values())
    if found <= {ENDED, GONE}:
        return IS_OVER
    goes_on = {RUNNING, ENDED, WAITING, BUSY} if is_starting else {RUNNING, ENDED}
    return TRAINS if found <= goes_on else HANGS


def _has_failed(state: ProcessState) -> bool:
    return state.exception not in (None, INTERRUPT) or bool(state.exit_status)


def _first_failed(states: Sequence[ProcessState], conditions: Mapping[int, str]) -> set[int]:
    """Return the rank that failed first, if no rank that still exists had stopped before: that may be why it failed."""
    failed = [state for state in states if _has_failed(state) and state.ended_ns is not None]
    quiet_s = [state.quiet_s or 0.0 for state in states if conditions[state.rank] in (WAITING, BUSY, SILENT)]
    if not failed:
        return set()
    first = min(failed, key=lambda state: (state.ended_ns or 0, state.rank))
    return {first.rank} if first.written_s >= max(quiet_s, default=0.0) - AT_ONCE_S else set()


def _culprits(
    conditions: Mapping[int, str],
    waiting: Mapping[int, tuple[Waiting, ...]],
    circles: Sequence[tuple[int, ...]],
    mismatches: Sequence[Mismatch],
    failed: set[int],
) -> tuple[int, ...]:
    """Return the ranks at the ends of all waits, those that are gone, and the one that failed before others stopped.

    Without any, the ranks of circles and mismatches; without those, the ranks that do something else for long.
    """
    ends = {each.rank for found in waiting.values() for each in found if not waiting.get(each.rank)}
    stuck = {rank for rank in ends if conditions.get(rank) != RUNNING} or ends
    gone = {rank for rank, condition in conditions.items() if condition in (GONE, SILENT)}
    in_circles = {rank for circle in circles for rank in circle}
    differing = {rank for each in mismatches for ranks in each.operations.values() for rank in ranks}
    busy = {rank for rank, condition in conditions.items() if condition == BUSY}
    return tuple(sorted((stuck | gone | failed) or in_circles or differing or busy))


def _circles(waiting: Mapping[int, tuple[Waiting, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the circles of ranks that wait for each other, each once, from its smallest rank on."""
    found: set[tuple[int, ...]] = set()
    done: set[int] = set()
    for start in sorted(waiting):
        path: list[int] = []
        rank: int | None = start
        while rank is not None and rank not in done:
            if rank in path:
                circle = path[path.index(rank) :]
                smallest = circle.index(min(circle))
                found.add(tuple(circle[smallest:] + circle[:smallest]))
                break
            path.append(rank)
            rank = _next_in(waiting, rank)
        done.update(path)
    return tuple(sorted(found))


def _next_in(waiting: Mapping[int, tuple[Waiting, ...]], rank: int) -> int | None:
    """Return a rank that a rank waits for: one that does not wait itself first, since that breaks no circle."""
    following = waiting.get(rank, ())
    free = [each.rank for each in following if not waiting.get(each.rank)]
    return None if free or not following else following[0].rank
