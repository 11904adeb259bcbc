"""The distance of a measured order from every order of the catalog with its placement and sizes."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.recognition.candidates import list_candidates
from stagescope.schedules.recognition.encoding import count_misplaced, peak_activations
from stagescope.schedules.recognition.evidence import group_sizes
from stagescope.schedules.recognition.result import (
    ACTIONS_MISSING,
    PAIRS_UNSEEN,
    SAME_ORDER,
    WEIGHTS_UNSEEN,
    Parameters,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.schedules.recognition.arrangement import Arrangement
    from stagescope.schedules.recognition.candidates import Candidate
    from stagescope.schedules.recognition.encoding import EncodedOrder
    from stagescope.schedules.recognition.evidence import Evidence

LARGE_ORDER_ACTIONS = 20_000
"""In orders with more actions, searched orders are built only if no other order fits exactly.

Searches are slow for many actions; benchmarks/recognize_speed.py has the time limit of a recognition.
"""

MIN_PEAK_RATIO, MAX_PEAK_RATIO = 0.9, 1.5
"""The range of a schedule's peak of activations, relative to the measured peak.

It is wide because the measured peak grows if W are missing.
"""


class Compared(NamedTuple):
    """A candidate, the arrangement of the ranks, and the distance of the measured order.

    The distance is the fraction of the measured actions that have a different position in the candidate. `same_form` is
    whether both split their backwards, or neither does.
    """

    candidate: Candidate
    arrangement: Arrangement
    distance: float
    same_form: bool

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return self.candidate.name

    @property
    def sort_key(self) -> tuple[float, bool]:
        """The key that sorts the nearest first, and among equal distances the same form of backwards first."""
        return self.distance, not self.same_form

    @property
    def parameters(self) -> Parameters:
        """The sizes and options of the candidate."""
        shape = self.candidate.shape
        return Parameters(shape.ranks, shape.microbatches, shape.chunks, self.candidate.options)


def compare_all(evidence: Evidence, arrangement: Arrangement) -> list[Compared]:
    """Return the comparison with every candidate; candidates that need no search come first.

    For a large order, searches stop when one candidate fits exactly, and only schedules with about the measured peak
    of activations are searched.
    """
    # The catalog order is kept: sorting by distance is stable, so the first of equal distances is named.
    candidates = list_candidates(arrangement, evidence.microbatches, group_sizes(evidence))
    compared = [_compare(evidence, arrangement, each) for each in candidates if not each.searched]
    searched = [each for each in candidates if each.searched]
    # All candidates are compared even after an exact match: the others determine margin and alternatives.
    if evidence.action_count <= LARGE_ORDER_ACTIONS:
        return compared + [_compare(evidence, arrangement, each) for each in searched]
    for candidate in _likeliest_first(searched, evidence):
        # Each search may take longer than everything before it, so look again before each one.
        if any(each.distance == 0 for each in compared):
            break
        compared.append(_compare(evidence, arrangement, candidate))
    return compared


def _likeliest_first(searched: Sequence[Candidate], evidence: Evidence) -> list[Candidate]:
    """Return the candidates whose peak of activations is possible, the nearest to the measured peak first."""
    measured = max(peak_activations(order) for order in evidence.orders.values())
    possible = [
        each for each in searched if MIN_PEAK_RATIO * measured <= each.peak <= MAX_PEAK_RATIO * measured
    ]
    return sorted(possible, key=lambda each: abs(each.peak - measured))


def reason_for_equality(evidence: Evidence, first: Candidate, second: Candidate) -> str:
    """Return why two candidates fit a measured order equally well.

    The reasons are tried from the strongest: the two orders are the same; they differ only in actions of a sort that
    the trace does not have (weight gradients, pairs); they differ only in actions that were lost.
    """
    if _same(first, second, weights=True, paired=True):
        return SAME_ORDER
    if not evidence.weights and _same(first, second, weights=False, paired=True):
        return WEIGHTS_UNSEEN
    if not evidence.paired and _same(first, second, weights=evidence.weights, paired=False):
        return PAIRS_UNSEEN
    return ACTIONS_MISSING


def _compare(evidence: Evidence, arrangement: Arrangement, candidate: Candidate) -> Compared:
    theory = candidate.encoded_orders(weights=evidence.weights)
    # Duplicates and renumbered actions were corrected before the comparison, so they are added here.
    wrong = (
        evidence.repeated
        + evidence.renumbered
        + sum(
            count_misplaced(evidence.orders[label], planned, paired=evidence.paired)
            for label, planned in zip(arrangement.labels, theory, strict=True)
            if label is not None
        )
    )
    same_form = candidate.splits == evidence.weights
    return Compared(candidate, arrangement, min(wrong / evidence.action_count, 1.0), same_form)


def _same(first: Candidate, second: Candidate, *, weights: bool, paired: bool) -> bool:
    def equal(one: EncodedOrder, other: EncodedOrder) -> bool:
        return one.codes == other.codes and (not paired or one.pairs == other.pairs)

    if first.shape.ranks != second.shape.ranks:
        return False
    orders = zip(first.encoded_orders(weights=weights), second.encoded_orders(weights=weights), strict=True)
    return all(starmap(equal, orders))
