"""The activation memory of every rank in another order, compared with the measured one."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.schedules.action_index import actions_of, index_actions
from stagescope.schedules.memory import peak_in_flight
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.schedules.action import Order

    Floats = NDArray[np.float64]

LEAST_MORE = 1.001
"""A rank holds more if it holds at least this much of what it held."""


class RankMemory(NamedTuple):
    """What an order needs: peak activations of every pipeline rank, and how often the ranks hold every stage.

    The unit of `peaks` is the activations of one micro-batch in all stages of a rank.
    """

    peaks: Floats
    copies: int

    def grouped(self, group: int) -> RankMemory:
        """Return the memory if every rank and micro-batch represents this many."""
        return RankMemory(np.repeat(self.peaks * group, group), self.copies)


class MemoryChange(NamedTuple):
    """The peak of the fullest rank relative to before, whether any rank needs more, and which ones how much."""

    activations: float
    is_more: bool
    text: str


def rank_memory(order: Order) -> RankMemory:
    """Return the memory of an order, whose ranks are sorted by their first stage."""
    stages = index_actions(order).stages
    held = {(stage, rank) for rank, _, stage, _ in actions_of(order)}
    first = {rank: min(stage for stage, holder in held if holder == rank) for rank in order} if order else {}
    peaks = peak_in_flight(order)
    share = np.array([peaks[rank] for rank in sorted(first, key=first.__getitem__)]) * len(order) / stages
    return RankMemory(share, max(1, len(held) // stages))


def compare_memory(before: RankMemory, after: RankMemory) -> MemoryChange:
    """Return what an order needs more than another one, rank by rank.

    >>> one_f_one_b, zero_bubble = RankMemory(np.array([3.0, 2, 1]), 1), RankMemory(np.array([3.0, 3, 3]), 1)
    >>> print(compare_memory(one_f_one_b, zero_bubble).text)
    pipeline ranks 1-2 hold more activations, at most 3 instead of 1 micro-batches (rank 2)
    """
    grows = np.flatnonzero(after.peaks > before.peaks * LEAST_MORE)
    texts = []
    if len(grows):
        most = int((after.peaks - before.peaks).argmax())
        ranks = "rank" if len(grows) == 1 else "ranks"
        holds = "holds" if len(grows) == 1 else "hold"
        texts.append(
            f"pipeline {ranks} {compact_ranges(grows.tolist())} {holds} more activations, at most "
            f"{after.peaks[most]:.3g} instead of {before.peaks[most]:.3g} micro-batches (rank {most})"
        )
    if after.copies > before.copies:
        texts.append(f"every rank holds {after.copies} times the parameters")
    ratio = float(after.peaks.max() / before.peaks.max()) if before.peaks.max() else 1.0
    return MemoryChange(ratio, bool(texts), "; ".join(texts))
