"""The stages of the model that each rank holds.

    linear         stage s on rank s
    loop           stage s on rank s mod p, so the pipeline goes around v times
    v              down the ranks and up again: stage s on rank s, from p on on rank 2p - 1 - s
    bidirectional  two replicas: stage s on rank s in direction 0, on rank p - 1 - s in direction 1

p is the number of ranks, v the number of model chunks per rank.
"""

from __future__ import annotations

PLACEMENTS = ("linear", "loop", "v", "bidirectional")


def stage_count(placement: str, ranks: int, chunks: int) -> int:
    """Return the number of stages of the model; the two replicas of a bidirectional pipeline have the same stages."""
    return ranks if placement == "bidirectional" else ranks * chunks


def stages_of(placement: str, ranks: int, chunks: int, rank: int) -> tuple[int, ...]:
    """Return the stages of a rank in the order of its chunks.

    >>> stages_of("loop", 4, 2, 1), stages_of("v", 4, 2, 1), stages_of("bidirectional", 4, 2, 1)
    ((1, 5), (1, 6), (1, 2))
    """
    if placement == "bidirectional":
        return (rank, ranks - 1 - rank)
    if placement == "v":
        return tuple(c * ranks + (ranks - 1 - rank if c % 2 else rank) for c in range(chunks))
    return tuple(range(rank, ranks * chunks, ranks))
