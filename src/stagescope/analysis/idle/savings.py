"""Causes that save time where they overlap with others, offset against these.

Causes are removed one after the other. A slow rank that no one waits for fills its own bubble, and a lucky order of
durations hides others: without it, a step would be longer. Such a cause costs nothing. What it saves, the causes that
it overlaps with do not cost: they are all reduced in proportion, so that the sum stays the same. Which of them it was
depends on the order of removal and is no property of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

OVERLAPPING = (
    "schedule_bubble",
    "stage_imbalance",
    "straggler",
    "data_imbalance",
    "jitter",
    "exposed_communication",
)
"""Causes that replays of other durations and transfers show. The others are measured where they happened."""


def offset_savings(parts_ns: Mapping[str, float]) -> dict[str, float]:
    """Return parts by cause with the same sum, none of which is negative unless the sum is.

    >>> offset_savings({"schedule_bubble": 6.0, "straggler": -1.0, "jitter": 4.0, "optimizer": 2.0})
    {'schedule_bubble': 5.4, 'straggler': 0.0, 'jitter': 3.6, 'optimizer': 2.0}
    """
    found = dict(parts_ns)
    for group in ([name for name in OVERLAPPING if name in found], list(found)):
        if any(found[name] < 0 for name in group):
            found |= _in_proportion({name: found[name] for name in group})
    return found


def offset_whole_savings(parts_ns: Mapping[str, int]) -> dict[str, int]:
    """Return the same for whole nanoseconds, with exactly the same sum: the largest part takes what rounding leaves."""
    if all(part_ns >= 0 for part_ns in parts_ns.values()):
        return dict(parts_ns)
    whole = {name: round(part_ns) for name, part_ns in offset_savings(parts_ns).items()}
    whole[max(whole, key=lambda name: whole[name])] += sum(parts_ns.values()) - sum(whole.values())
    return whole


def _in_proportion(parts_ns: Mapping[str, float]) -> dict[str, float]:
    """Return parts without negative ones; what the positive ones cannot offset stays negative in the first one."""
    whole_ns, positive_ns = sum(parts_ns.values()), _positive(parts_ns.values())
    if whole_ns < 0:
        return {**dict.fromkeys(parts_ns, 0.0), next(iter(parts_ns)): whole_ns}
    ratio = whole_ns / positive_ns if positive_ns else 0.0
    return {name: max(part_ns, 0.0) * ratio for name, part_ns in parts_ns.items()}


def _positive(values: Collection[float]) -> float:
    return sum(value for value in values if value > 0)
