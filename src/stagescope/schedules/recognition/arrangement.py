"""Where each rank stands in the pipeline, from the stages that it holds.

Labels of ranks mean nothing here: a rank's place follows from its stages, so that orders keyed by global
ranks, or read in any sequence, are the same evidence.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.placement import stages_of
from stagescope.schedules.recognition.lines import action_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.schedules.recognition.evidence import Evidence

V_CHUNKS = 2
"""Every known schedule on a V goes down once and up once."""


class Arrangement(NamedTuple):
    """A placement that the measured stages allow, and the label of the rank at each place, None if missing."""

    placement: str
    chunks: int
    labels: tuple[int | None, ...]

    @property
    def ranks(self) -> int:
        """How many ranks the pipeline has."""
        return len(self.labels)


def find_arrangements(evidence: Evidence) -> list[Arrangement]:
    """Return every placement that fits; with one rank a loop and a V are the same.

    Where none fits, up to one rank in eight (at least one) may be missing.
    """
    present = len(evidence.held)
    most = present + max(present // 8, 1) if present else 0
    for ranks in range(max(present, 1), most + 1):
        found = [*_one_pipeline(evidence, ranks), *_two_pipelines(evidence, ranks)]
        if found:
            return found
    return []


def _one_pipeline(evidence: Evidence, ranks: int) -> Iterator[Arrangement]:
    chunks = len(next(iter(evidence.held.values()), ()))
    shapes = (("linear", chunks == 1), ("loop", chunks > 1), ("v", chunks == V_CHUNKS))
    for placement in (name for name, possible in shapes if possible):
        place = {frozenset(stages_of(placement, ranks, chunks, r)): r for r in range(ranks)}
        labels: list[int | None] = [None] * ranks
        for label, stages in evidence.held.items():
            if stages in place:
                labels[place[stages]] = label
        if sum(label is not None for label in labels) == len(evidence.held):
            yield Arrangement(placement, chunks, tuple(labels))


def _two_pipelines(evidence: Evidence, ranks: int) -> Iterator[Arrangement]:
    """Yield the arrangement of two replicas that run in opposite directions, if the stages are like that."""
    half = ranks // 2
    sides: dict[frozenset[int], list[int]] = defaultdict(list)
    for label, stages in evidence.held.items():
        sides[stages].append(label)
    mirrored = [frozenset(stages_of("bidirectional", ranks, 2, r)) for r in range(half)]
    if ranks % 2 or any(len(sides[stages]) != 2 for stages in mirrored) or len(sides) != half:  # noqa: PLR2004  # one of each side
        return
    labels: list[int | None] = [None] * ranks
    for r, stages in enumerate(mirrored):
        first, second = sides[stages]
        if _goes_down(evidence, first, second, r) > _goes_down(evidence, second, first, r):
            first, second = second, first
        labels[r], labels[ranks - 1 - r] = first, second
    yield Arrangement("bidirectional", V_CHUNKS, tuple(labels))


def _goes_down(evidence: Evidence, near: int, far: int, stage: int) -> int:
    """Return the first micro-batch of the direction in which rank `near` runs `stage` and `far` its mirror.

    Micro-batch 0 goes down the ranks.
    """
    return min(
        [
            action.microbatch
            for action in map(action_of, evidence.lines[near].numbers)
            if action.stage == stage
        ]
        + [
            action.microbatch
            for action in map(action_of, evidence.lines[far].numbers)
            if action.stage != stage
        ],
        default=evidence.microbatches,
    )
