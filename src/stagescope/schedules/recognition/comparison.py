"""How far a measured order is from every order of the catalog that it could be."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.recognition.candidates import list_candidates
from stagescope.schedules.recognition.evidence import group_sizes
from stagescope.schedules.recognition.lines import misplaced, most_in_flight
from stagescope.schedules.recognition.result import LOST, PAIRS_UNSEEN, SAME_ORDER, WEIGHTS_UNSEEN, Parameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.schedules.recognition.arrangement import Arrangement
    from stagescope.schedules.recognition.candidates import Candidate
    from stagescope.schedules.recognition.evidence import Evidence
    from stagescope.schedules.recognition.lines import Line

LARGE = 20_000
"""Above this many actions, searched orders are built only where no other order fits exactly."""

PEAK_FROM, PEAK_TO = 0.9, 1.5
"""How far a schedule's peak of activations may be from the measured one: W that are not seen end none."""


class Compared(NamedTuple):
    """A candidate, the ranks' places that it was compared at, and its distance.

    The distance is the share of the measured actions that stand elsewhere than in the candidate. The form is the
    same if both split backwards, or neither does.
    """

    candidate: Candidate
    arrangement: Arrangement
    distance: float
    same_form: bool

    @property
    def name(self) -> str:
        """The candidate's name."""
        return self.candidate.name

    @property
    def nearness(self) -> tuple[float, bool]:
        """What sorts the nearest first; of equal ones, those that split their backwards if the measured are."""
        return self.distance, not self.same_form

    @property
    def parameters(self) -> Parameters:
        """What the candidate was built with."""
        shape = self.candidate.shape
        return Parameters(shape.ranks, shape.microbatches, shape.chunks, self.candidate.options)


def compare_all(evidence: Evidence, arrangement: Arrangement) -> list[Compared]:
    """Return the comparison with every candidate; those that need no search come first.

    Of a large order, searches are only made until one candidate fits exactly, and only where the activations
    that a rank kept are about those of the schedule.
    """
    candidates = list_candidates(arrangement, evidence.microbatches, group_sizes(evidence))
    compared = [_compare(evidence, arrangement, each) for each in candidates if not each.searched]
    searched = [each for each in candidates if each.searched]
    if evidence.action_count <= LARGE:
        return compared + [_compare(evidence, arrangement, each) for each in searched]
    for candidate in _likeliest_first(searched, evidence):
        if any(each.distance == 0 for each in compared):
            break
        compared.append(_compare(evidence, arrangement, candidate))
    return compared


def _likeliest_first(searched: Sequence[Candidate], evidence: Evidence) -> list[Candidate]:
    """Return those whose peak of activations is possible, the nearest one to the measured peak first."""
    measured = max(most_in_flight(line) for line in evidence.lines.values())
    possible = [each for each in searched if PEAK_FROM * measured <= each.peak <= PEAK_TO * measured]
    return sorted(possible, key=lambda each: abs(each.peak - measured))


def why_equal(evidence: Evidence, first: Candidate, second: Candidate) -> str:
    """Return why two candidates that fit a measured order equally well cannot be told apart by it."""
    if _same(first, second, weights=True, paired=True):
        return SAME_ORDER
    if not evidence.weights and _same(first, second, weights=False, paired=True):
        return WEIGHTS_UNSEEN
    if not evidence.paired and _same(first, second, weights=evidence.weights, paired=False):
        return PAIRS_UNSEEN
    return LOST


def _compare(evidence: Evidence, arrangement: Arrangement, candidate: Candidate) -> Compared:
    theory = candidate.lines(weights=evidence.weights)
    wrong = (
        evidence.repeated
        + evidence.renumbered
        + sum(
            misplaced(evidence.lines[label], line, paired=evidence.paired)
            for label, line in zip(arrangement.labels, theory, strict=True)
            if label is not None
        )
    )
    same_form = candidate.splits == evidence.weights
    return Compared(candidate, arrangement, min(wrong / evidence.action_count, 1.0), same_form)


def _same(first: Candidate, second: Candidate, *, weights: bool, paired: bool) -> bool:
    def equal(one: Line, other: Line) -> bool:
        return one.numbers == other.numbers and (not paired or one.pairs == other.pairs)

    if first.shape.ranks != second.shape.ranks:
        return False
    lines = zip(first.lines(weights=weights), second.lines(weights=weights), strict=True)
    return all(starmap(equal, lines))
