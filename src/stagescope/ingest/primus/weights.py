"""Which backward each weight gradient of Primus' zero-bubble runtime belongs to; its dumps do not state it.

Source: AMD-AGI/Primus fd1eeabb, zerobubble/zbpp_utils.py (`WeightGradStore`), zerobubble/runtime.py (`schedule_w`) and
zerobubble/scheduler. What can be concluded from it:

* Each chunk has a queue: its weight gradients come in the order of its backwards. With one chunk nothing else is open.
* After the last forward or backward, all weight gradients of one chunk follow each other.
* Before that, the plan decides between chunks. The plans of ``zbv.py`` take the oldest backward; those of
  ``zbv_greedy.py`` (v-half and v-min) take one of the last chunk if there is any. The latter two plans depend on
  nothing but the numbers of ranks and micro-batches, so a dump is one of them if its order of actions is that of the
  plan.

Both rules were compared with the plans that Primus' code makes for 2 to 8 ranks, and agreed with all of them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from stagescope import schedules
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    Number = tuple[int | None, int | None]  # chunk and micro-batch

UNKNOWN = (None, None)
FIXED_PLANS = ("v-half", "v-min")
MOST_ACTIONS = 1 << 14
"""Micro-batches on all ranks up to which a plan is made, which takes a second at this size."""


class Executed(NamedTuple):
    """One action of a rank: series of the dump (``fwd``, ``bwd``, ``wgrad``), chunk and micro-batch."""

    series: str
    chunk: int | None
    microbatch: int | None


class Shape(NamedTuple):
    """The pipeline rank, and the sizes of the run; None if unknown."""

    pp_rank: int
    pp_size: int | None
    num_mbs: int | None


def number_weights(actions: Sequence[Executed], shape: Shape) -> list[Number]:
    """Return chunk and micro-batch of each weight gradient, in order; `UNKNOWN` where they cannot be concluded.

    `actions` are all actions of one iteration of one rank in the order of their execution.
    """
    weights = sum(action.series == "wgrad" for action in actions)
    backwards = [action for action in actions if action.series == "bwd"]
    if weights != len(backwards) or any(None in (action.chunk, action.microbatch) for action in backwards):
        return [UNKNOWN] * weights
    oldest_first, last_chunk_first = (_assign(actions, last_chunk_first=rule) for rule in (False, True))
    if oldest_first == last_chunk_first:
        return oldest_first
    plans = _fixed_plans(shape)
    if plans is None:
        pairs = zip(oldest_first, last_chunk_first, strict=True)
        return [one if one == other else UNKNOWN for one, other in pairs]
    return last_chunk_first if _without_weights(actions) in plans else oldest_first


def _assign(actions: Sequence[Executed], *, last_chunk_first: bool) -> list[Number]:
    """Return the backward of each weight gradient if the plan has one of the two rules."""
    last = max(place for place, action in enumerate(actions) if action.series != "wgrad")
    waiting: defaultdict[int | None, deque[tuple[int, int | None]]] = defaultdict(deque)
    found: list[Number] = []
    previous: int | None = None
    for place, (series, chunk, microbatch) in enumerate(actions):
        if series == "bwd":
            waiting[chunk].append((place, microbatch))
        if series != "wgrad":
            continue
        ready = sorted((queue[0][0], number) for number, queue in waiting.items() if queue)
        if not ready:  # a weight gradient before its backward: the clock or the dump is wrong
            found.append(UNKNOWN)
            continue
        chunks = [number for _, number in ready]
        if place - 1 > last and previous in chunks:
            taken = previous
        else:
            taken = max(chunks, key=lambda number: number or 0) if last_chunk_first else chunks[0]
        previous = taken
        found.append((taken, waiting[taken].popleft()[1]))
    return found


def _without_weights(actions: Sequence[Executed]) -> tuple[Executed, ...]:
    """Return the order with all weight gradients alike."""
    return tuple(Executed("wgrad", None, None) if action.series == "wgrad" else action for action in actions)


def _fixed_plans(shape: Shape) -> frozenset[tuple[Executed, ...]] | None:
    """Return this rank's order in the plans that depend only on the sizes; None if the sizes are unknown."""
    if not shape.pp_size or not shape.num_mbs or shape.pp_rank >= shape.pp_size:
        return None
    if shape.pp_size * shape.num_mbs > MOST_ACTIONS:
        return None
    try:
        return frozenset(
            _without_weights(_planned(name, shape.pp_size, shape.num_mbs)[shape.pp_rank])
            for name in FIXED_PLANS
        )
    except ScheduleError:  # sizes that these schedules do not have
        return None


@lru_cache(maxsize=4)
def _planned(name: str, pp_size: int, num_mbs: int) -> list[list[Executed]]:
    series = {"F": "fwd", "I": "bwd", "B": "bwd", "W": "wgrad"}
    order = schedules.order(name, ranks=pp_size, microbatches=num_mbs)
    return [
        [Executed(series[action.kind], action.stage // pp_size, action.microbatch) for action in order[rank]]
        for rank in range(pp_size)
    ]
