"""The sentences of a recognition: the sizes, the verdict, and the alternatives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.schedules.recognition.arrangement import Arrangement
    from stagescope.schedules.recognition.evidence import Evidence
    from stagescope.schedules.recognition.result import Alternative

MAX_RANKS_SHOWN = 4


def shape(arrangement: Arrangement, microbatches: int) -> str:
    """Return the sizes, such as ``4 ranks of 2 chunks (v), 10 micro-batches``."""
    chunks = f" of {_count(arrangement.chunks, 'chunk')}" if arrangement.chunks > 1 else ""
    ranks = f"{_count(arrangement.ranks, 'rank')}{chunks} ({arrangement.placement})"
    return f"{ranks}, {_count(microbatches, 'micro-batch', 'micro-batches')}"


def omissions(arrangement: Arrangement, evidence: Evidence, missing_fraction: float) -> Iterator[str]:
    """Yield what is missing from the measured order, and its first fault."""
    absent = sum(label is None for label in arrangement.labels)
    if absent:
        yield f"{_count(absent, 'rank')} missing"
    if missing_fraction:
        yield f"{missing_fraction:.1%} of the actions are missing"
    if not evidence.weights:
        yield "no weight gradients were recorded separately"
    if evidence.faults:
        yield f"the order has faults ({evidence.faults[0]})"


def exact(name: str) -> str:
    """Return the verdict on an order that equals a schedule."""
    return f"{name}, with every measured action at its position"


def close(name: str, distance: float) -> str:
    """Return the verdict on an order that nearly equals a schedule."""
    return f"{name}, although {_misplaced(distance)}"


def by_traits(name: str, nearest: str, distance: float) -> str:
    """Return the verdict on an order that a search may find for some costs."""
    return f"{name} for unknown costs (compared with {nearest} at unit costs, {_misplaced(distance)})"


def unknown(nearest: str, distance: float) -> str:
    """Return the verdict on an order without a name."""
    return f"unknown, nearest {nearest}: {_misplaced(distance)}"


def others(indistinct: Iterable[Alternative]) -> Iterator[str]:
    """Yield one sentence per reason, with the schedules that the order may also be."""
    by_reason: dict[str, list[str]] = {}
    for each in indistinct:
        options = ", ".join(f"{name}={value}" for name, value in each.parameters.options.items())
        by_reason.setdefault(each.reason, []).append(f"{each.name} ({options})" if options else each.name)
    for reason, names in by_reason.items():
        yield f"it may also be {' or '.join(dict.fromkeys(names))}: {reason}"


def no_placement(evidence: Evidence) -> str:
    """Return why no schedule was compared, with the stages of the first ranks."""
    if not evidence.held:
        return "no rank ran any action"
    shown = [
        f"rank {rank} has {', '.join(map(str, sorted(stages))) or 'none'}"
        for rank, stages in list(evidence.held.items())[:MAX_RANKS_SHOWN]
    ]
    return f"the placement of the stages matches no known schedule: {'; '.join(shown)}" + (
        "; ..." if len(evidence.held) > MAX_RANKS_SHOWN else ""
    )


def no_schedule(arrangements: Iterable[Arrangement], microbatches: int) -> str:
    """Return the sentence for sizes in which no schedule exists."""
    return f"no known schedule has {' or '.join(shape(each, microbatches) for each in arrangements)}"


def _misplaced(distance: float) -> str:
    return f"{distance:.1%} of the actions are at other positions"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
