"""The sentences of a recognition: what was seen, what it is, what it could be as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.schedules.recognition.arrangement import Arrangement
    from stagescope.schedules.recognition.evidence import Evidence
    from stagescope.schedules.recognition.result import Alternative

RANKS_SHOWN = 4


def shape(arrangement: Arrangement, microbatches: int) -> str:
    """Return the sizes: 4 ranks of 2 chunks (v), 10 micro-batches."""
    chunks = f" of {_count(arrangement.chunks, 'chunk')}" if arrangement.chunks > 1 else ""
    ranks = f"{_count(arrangement.ranks, 'rank')}{chunks} ({arrangement.placement})"
    return f"{ranks}, {_count(microbatches, 'micro-batch', 'micro-batches')}"


def gaps(arrangement: Arrangement, evidence: Evidence, missing_fraction: float) -> Iterator[str]:
    """Yield what the measured order does not show, and the first thing that is wrong with it."""
    absent = sum(label is None for label in arrangement.labels)
    if absent:
        yield f"{_count(absent, 'rank')} missing"
    if missing_fraction:
        yield f"{missing_fraction:.1%} of the actions are missing"
    if not evidence.weights:
        yield "no weight gradient is seen apart from its backward"
    if evidence.faults:
        yield f"the order is faulty ({evidence.faults[0]})"


def exact(name: str) -> str:
    """Return the verdict on an order that is a schedule's."""
    return f"{name}, every measured action where it should be"


def close(name: str, distance: float) -> str:
    """Return the verdict on an order that is nearly a schedule's."""
    return f"{name}, though {_elsewhere(distance)}"


def by_traits(name: str, nearest: str, distance: float) -> str:
    """Return the verdict on an order that a search finds for some costs."""
    return f"{name} for costs that are not known (of {nearest} at unit costs, {_elsewhere(distance)})"


def unknown(nearest: str, distance: float) -> str:
    """Return the verdict on an order without a name."""
    return f"unknown, nearest {nearest}: {_elsewhere(distance)}"


def others(indistinct: Iterable[Alternative]) -> Iterator[str]:
    """Yield, for each reason, the schedules that an order may be for that reason as well."""
    by_reason: dict[str, list[str]] = {}
    for each in indistinct:
        options = ", ".join(f"{name}={value}" for name, value in each.parameters.options.items())
        by_reason.setdefault(each.reason, []).append(f"{each.name} ({options})" if options else each.name)
    for reason, names in by_reason.items():
        yield f"it may be {' or '.join(dict.fromkeys(names))}: {reason}"


def no_placement(evidence: Evidence) -> str:
    """Return why no schedule was compared: where the stages are."""
    if not evidence.held:
        return "no rank ran any action"
    shown = [
        f"rank {rank} has {', '.join(map(str, sorted(stages))) or 'none'}"
        for rank, stages in list(evidence.held.items())[:RANKS_SHOWN]
    ]
    return f"stages are placed as in no known schedule: {'; '.join(shown)}" + (
        "; ..." if len(evidence.held) > RANKS_SHOWN else ""
    )


def no_schedule(arrangements: Iterable[Arrangement], microbatches: int) -> str:
    """Return that no schedule exists in these sizes."""
    return f"no known schedule has {' or '.join(shape(each, microbatches) for each in arrangements)}"


def _elsewhere(distance: float) -> str:
    return f"{distance:.1%} of the actions stand elsewhere"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"
