"""Ranks whose clocks were slower than those of the others, or were slowed down: what was observed, without a cause.

A slow rank and a slow clock may have one reason, or none in common. The figures are stated beside a finding about the
rank, and are no finding of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.counters import (
    CPU_FREQUENCY,
    CPU_QUOTA_WAIT,
    CPU_THROTTLES,
    GPU_CLOCK,
    GPU_SLOWDOWNS,
    GPU_TEMPERATURE,
)
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

LEAST_FRACTION = {GPU_CLOCK: 0.03, CPU_FREQUENCY: 0.1}
"""By how much a clock has to be slower than those of the other ranks. CPUs change theirs all the time."""

SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that a healthy GPU under load does not show; a power cap (0x4) it does."""

LEAST_QUOTA_FRACTION = 0.01
"""A smaller part of the recorded time without CPU quota is not worth a sentence."""


def clock_notes(counters: pl.DataFrame, steps: Collection[int]) -> dict[int, str]:
    """Return by rank what its counters showed during `steps` that those of the other ranks did not.

    A rank without such an observation is missing.
    """
    chosen = counters.filter(pl.col("step").is_in(list(steps)))
    notes: dict[int, list[str]] = {}
    for find in (_slow_clocks, _slowdowns, _throttles, _quota_waits):
        for rank, text in find(chosen):
            notes.setdefault(rank, []).append(text)
    return {rank: "; ".join(texts) for rank, texts in notes.items()}


def _slow_clocks(counters: pl.DataFrame) -> Iterator[tuple[int, str]]:
    for name, least in LEAST_FRACTION.items():
        own = counters.filter(pl.col("name") == name)
        means = own.group_by("rank").agg(pl.mean("value"), pl.len()).sort("rank")
        for rank, value, samples in means.iter_rows():
            others = means.filter(pl.col("rank") != rank)["value"].median()
            if isinstance(others, float) and value <= (1 - least) * others:
                heat = _temperature(counters, rank) if name == GPU_CLOCK else ""
                text = f"{name} of {value:,.0f} MHz on average{heat}, {others:,.0f} MHz on the other ranks"
                yield rank, f"{text} (n = {samples} readings)"


def _temperature(counters: pl.DataFrame, rank: int) -> str:
    own = counters.filter((pl.col("name") == GPU_TEMPERATURE) & (pl.col("rank") == rank))["value"]
    return f" at up to {max(own.to_list()):.0f} °C" if len(own) else ""


def _slowdowns(counters: pl.DataFrame) -> Iterator[tuple[int, str]]:
    own = counters.filter(pl.col("name") == GPU_SLOWDOWNS).with_columns(pl.col("value").cast(pl.Int64))
    for (rank,), rows in own.group_by("rank", maintain_order=True):
        for bit, words in SLOWDOWNS.items():
            count = sum(1 for value in rows["value"].to_list() if value & bit)
            if count:
                yield int(str(rank)), f"{words} in {count} of {rows.height} readings"


def _throttles(counters: pl.DataFrame) -> Iterator[tuple[int, str]]:
    for rank, growth, _ in _growth(counters, CPU_THROTTLES):
        if growth:
            yield rank, f"{growth:,.0f} thermal throttles of the CPU"


def _quota_waits(counters: pl.DataFrame) -> Iterator[tuple[int, str]]:
    for rank, growth, length_ns in _growth(counters, CPU_QUOTA_WAIT):
        if growth >= LEAST_QUOTA_FRACTION * length_ns > 0:
            during = duration_text(length_ns)
            yield rank, f"CPU quota used up for {duration_text(round(growth))} within {during}"


def _growth(counters: pl.DataFrame, name: str) -> Iterator[tuple[int, float, int]]:
    """Yield rank, growth of a counter that only grows, and the time between its first and last reading."""
    own = counters.filter(pl.col("name") == name).sort("time_ns")
    ends = own.group_by("rank").agg(
        growth=pl.col("value").last() - pl.col("value").first(),
        length_ns=pl.col("time_ns").last() - pl.col("time_ns").first(),
    )
    yield from ends.sort("rank").iter_rows()
