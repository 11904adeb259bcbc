"""Offsets between groups of clocks that are connected by messages in one direction only.

Within a group every clock is bounded on both sides. Between groups there are at most observations in one direction,
which bound how far one group is ahead of the other on one side only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stagescope.clocks.correction import Correction
    from stagescope.clocks.evidence import Coarse, Evidence, Floats, Ints
    from stagescope.clocks.solution import Solution

BLOCK = 16
"""This many observations in one direction, consecutive in time, are judged together."""


def shift_groups(
    corrections: list[Correction], solution: Solution, evidence: Evidence, coarse: Coarse, drift_ns: float
) -> list[Correction]:
    """Return the corrections with each group shifted by the least amount that its one-way observations require.

    The errors include the uncertainty of the shift. `drift_ns` is how far two clocks may drift apart over the run,
    because an observation at one moment has to hold for all of it. The group of the first clock is not shifted; nor
    is a group without observations towards it, and its errors are infinite.
    """
    main = int(solution.reference[0])
    lower_ns, upper_ns = _shift_range(solution, evidence, coarse, drift_ns)
    shifted = []
    for clock, own in enumerate(corrections):
        group = int(solution.reference[clock])
        if group == main:
            shifted.append(own)
            continue
        shift_ns = int(np.rint(np.clip(0.0, lower_ns[group], upper_ns[group])))
        shifted.append(
            replace(
                own,
                offset_ns=own.offset_ns + shift_ns,
                lower_ns=own.lower_ns + lower_ns[group] - shift_ns,
                upper_ns=own.upper_ns + upper_ns[group] - shift_ns,
                estimated_ns=np.full(len(own.estimated_ns), np.nan),
            )
        )
    return shifted


def _shift_range(
    solution: Solution, evidence: Evidence, coarse: Coarse, drift_ns: float
) -> tuple[Floats, Floats]:
    """Return the least and the greatest shift of each group, at its reference."""
    reference, clocks = solution.reference, len(solution.reference)
    dropped = [
        key for c in solution.contradictions for key in (c.one * clocks + c.other, c.other * clocks + c.one)
    ]
    between = reference[evidence.source] != reference[evidence.target]
    between &= ~np.isin(evidence.source * clocks + evidence.target, dropped)
    across = evidence.where(between)
    lowest, highest = solution.bounds.lower_ns.min(axis=0), solution.bounds.upper_ns.max(axis=0)
    moved_ns = (
        coarse.offset_ns[reference[across.target]] - coarse.offset_ns[reference[across.source]]
    ).astype(float)
    limit_ns = across.delay_ns + highest[across.target] - lowest[across.source] + moved_ns + drift_ns
    one, other, limit_ns = _one_way_limits(across, limit_ns, reference)
    # In raw time, not coarse time: a shift of 0 leaves the raw timestamps of the group's reference unchanged.
    upper_ns = _reach(one, other, limit_ns, int(reference[0]), clocks)
    lower_ns = -_reach(other, one, limit_ns, int(reference[0]), clocks)
    return lower_ns, upper_ns


def _one_way_limits(across: Evidence, limit_ns: Floats, reference: Ints) -> tuple[Ints, Ints, Floats]:
    """Return the limit between every two groups, robust against outliers among the observations.

    Without observations in the other direction, no outlier can be detected and no clock adjustment either. So instead
    of the tightest limit, the result is the widest over all blocks in time of the median of each block.
    """
    order = np.lexsort((across.sent_ns, across.target, across.source))
    across, limit_ns = across.where(order), limit_ns[order]
    pair = across.source * len(reference) + across.target
    limits: dict[tuple[int, int], float] = {}
    for key in np.unique(pair).tolist():
        own = limit_ns[pair == key]
        blocks = [own[at : at + BLOCK] for at in range(0, max(1, len(own) - BLOCK // 2), BLOCK)]
        blocks[-1] = own[(len(blocks) - 1) * BLOCK :]
        widest_ns = max(float(np.sort(block)[len(block) // 2]) for block in blocks)
        groups = int(reference[key // len(reference)]), int(reference[key % len(reference)])
        limits[groups] = min(widest_ns, limits.get(groups, np.inf))
    ends = np.array(list(limits), np.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1], np.array(list(limits.values()))


def _reach(to: np.ndarray, via: np.ndarray, limit_ns: Floats, main: int, clocks: int) -> Floats:
    distance = np.full(clocks, np.inf)
    distance[main] = 0.0
    # Bellman-Ford between groups, as in bounds.py within one.
    for _ in range(clocks):
        before = distance.copy()
        np.minimum.at(distance, to, distance[via] + limit_ns)
        if np.array_equal(before, distance):
            break
    return distance
