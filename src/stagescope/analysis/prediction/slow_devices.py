"""What a prediction of another schedule assumes about slow devices, if a schedule moves their stages.

A simulation takes the measured cost of every stage to the rank that runs it in the other schedule. The cost of a stage
on a slow device contains how slow that is, which in a training would stay with the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.statistics.stragglers import Stragglers
    from stagescope.schedules.action import Order

MOST_NAMED = 3
UNKNOWN = "imbalance or slow device"


class SlowDevice(NamedTuple):
    """A rank that is claimed to be slow, or may be as no replica runs its stage, and the stages that it ran."""

    rank: int
    stages: frozenset[int]
    is_certain: bool


def find_slow_devices(stragglers: Stragglers, actions: Actions) -> list[SlowDevice]:
    """Return the devices that are slow in all or some steps, sorted by rank."""
    claimed = stragglers.table.filter("is_claimed")
    slow = claimed.filter(pl.col("subject") == "rank", pl.col("finding") == "slow")["rank"]
    changing = stragglers.changing["rank"]
    unknown = claimed.filter(pl.col("finding") == UNKNOWN).drop_nulls("rank")["rank"]
    certain = {*slow, *changing}
    stages = actions.table.select("rank", "stage").unique().group_by("rank").agg("stage")
    held = {rank: frozenset(each) for rank, each in stages.iter_rows()}
    return [
        SlowDevice(rank, held.get(rank, frozenset()), rank in certain)
        for rank in sorted({*certain, *unknown})
    ]


def moving_conditions(devices: Sequence[SlowDevice], measured: Order, other: Order) -> list[str]:
    """Return the assumption about each device of which the other schedule runs a stage, or a part of one, elsewhere."""
    before, after = _ranks_of_stages(measured), _ranks_of_stages(other)
    parts, joined = max(len(after) // len(before), 1), max(len(before) // len(after), 1)
    moved = {
        stage
        for stage, ranks in before.items()
        if any(after.get(stage * parts // joined + part) != ranks for part in range(parts))
    }
    return _conditions([each for each in devices if not each.stages.isdisjoint(moved)])


def _ranks_of_stages(order: Order) -> dict[int, set[int]]:
    """Return the places of the ranks that run each stage."""
    found: dict[int, set[int]] = {}
    for place, rank in enumerate(sorted(order)):
        for action in order[rank]:
            for part in action.parts:
                found.setdefault(part.stage, set()).add(place)
    return found


def _conditions(moving: list[SlowDevice]) -> list[str]:
    if len(moving) > MOST_NAMED:
        return [f"if what makes {len(moving)} ranks slow moves with their stages"]
    return [_condition(each) for each in moving]


def _condition(device: SlowDevice) -> str:
    if not device.is_certain:
        return f"if the extra time of rank {device.rank} is work that moves with its stage"
    return f"if what makes rank {device.rank} slow moves with its stage{'s' * (len(device.stages) > 1)}"
