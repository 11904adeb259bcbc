"""The position of each rank in the pipeline, from the stages that it holds.

The keys of the orders are only labels. Orders keyed by global ranks, or read in a different sequence, give the same
positions.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.placement import stages_of
from stagescope.schedules.recognition.encoding import decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.schedules.recognition.evidence import Evidence

V_CHUNKS = 2
"""Every known schedule on a V goes down the ranks once and up once."""


class Arrangement(NamedTuple):
    """A placement that fits the measured stages, and the label of the rank at each position, None if it is missing."""

    placement: str
    chunks: int
    labels: tuple[int | None, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks of the pipeline."""
        return len(self.labels)


def find_arrangements(evidence: Evidence) -> list[Arrangement]:
    """Return every placement that fits the stages; more than one with a single rank, where loop and V are equal.

    If none fits, placements with missing ranks are tried, up to one rank in eight and at least one. The smallest number
    of missing ranks that fits is used: with many of them, nearly any set of stages would fit some larger pipeline.
    """
    present = len(evidence.held)
    most = present + max(present // 8, 1) if present else 0
    # The number of stages is unknown if ranks are missing, so sizes are tried from the smallest.
    for ranks in sorted(size for size in _possible_sizes(evidence) if max(present, 1) <= size <= most):
        found = [*_one_pipeline(evidence, ranks), *_two_pipelines(evidence, ranks)]
        if found:
            return found
    return []


def _possible_sizes(evidence: Evidence) -> set[int]:
    """Return the numbers of ranks that can fit the stages; trying all would take quadratic time in them.

    Any rank with several stages determines the size: neighboring chunks are one pipeline apart in a loop, and the two
    stages of a rank are mirrored in a V and in a bidirectional pipeline. With one stage per rank, nothing but the
    largest stage limits the size.
    """
    stages = sorted(next(iter(evidence.held.values()), ()))
    if len(stages) <= 1:
        return {
            len(evidence.held),
            max((max(held, default=0) for held in evidence.held.values()), default=0) + 1,
        }
    total = stages[0] + stages[-1] + 1
    return {stages[1] - stages[0], total // 2, total}


def _one_pipeline(evidence: Evidence, ranks: int) -> Iterator[Arrangement]:
    # All ranks of a pipeline hold the same number of chunks, so any of them gives it.
    chunks = len(next(iter(evidence.held.values()), ()))
    shapes = (("linear", chunks == 1), ("loop", chunks > 1), ("v", chunks == V_CHUNKS))
    for placement in (name for name, possible in shapes if possible):
        position = {frozenset(stages_of(placement, ranks, chunks, r)): r for r in range(ranks)}
        labels: list[int | None] = [None] * ranks
        for label, stages in evidence.held.items():
            if stages in position:
                labels[position[stages]] = label
        # Two ranks with equal stages, as with data parallelism, would take one position: this is not one pipeline.
        if sum(label is not None for label in labels) == len(evidence.held):
            yield Arrangement(placement, chunks, tuple(labels))


def _two_pipelines(evidence: Evidence, ranks: int) -> Iterator[Arrangement]:
    """Yield the arrangement of two replicas that run in opposite directions, if the stages are mirrored.

    Both ranks of a mirrored pair hold the same two stages. Which of them is nearer to the first rank follows from the
    micro-batches that they run on each stage.
    """
    half = ranks // 2
    sides: dict[frozenset[int], list[int]] = defaultdict(list)
    for label, stages in evidence.held.items():
        sides[stages].append(label)
    mirrored = [frozenset(stages_of("bidirectional", ranks, 2, r)) for r in range(half)]
    if ranks % 2 or any(len(sides[stages]) != 2 for stages in mirrored) or len(sides) != half:  # noqa: PLR2004  # one rank of each half
        return
    labels: list[int | None] = [None] * ranks
    for r, stages in enumerate(mirrored):
        first, second = sides[stages]
        if _first_microbatch_down(evidence, first, second, r) > _first_microbatch_down(
            evidence, second, first, r
        ):
            first, second = second, first
        labels[r], labels[ranks - 1 - r] = first, second
    yield Arrangement("bidirectional", V_CHUNKS, tuple(labels))


def _first_microbatch_down(evidence: Evidence, near: int, far: int, stage: int) -> int:
    """Return the first micro-batch in the direction in which rank `near` runs `stage` and `far` the mirrored stage.

    In all bidirectional schedules micro-batch 0 goes down the ranks, so the right assignment gives the smaller number.
    """
    return min(
        [action.microbatch for action in map(decode, evidence.orders[near].codes) if action.stage == stage]
        + [action.microbatch for action in map(decode, evidence.orders[far].codes) if action.stage != stage],
        default=evidence.microbatches,
    )
