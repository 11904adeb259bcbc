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
    from collections.abc import Collection, Iterator, Mapping

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


_NAMES = (*LEAST_FRACTION, GPU_TEMPERATURE, GPU_SLOWDOWNS, CPU_THROTTLES, CPU_QUOTA_WAIT)


def read_clocks(counters: pl.DataFrame, steps: Collection[int]) -> pl.DataFrame:
    """Return what the counters of clocks showed during `steps`, one row per rank and counter: rank, name, readings.

    `total` is the sum of the readings, `largest` the largest one, `first` and `last` those at first_ns and last_ns.
    Each of the SLOWDOWNS has a column with the number of readings that show it. `join_readings` adds those of other
    steps.
    """
    own = counters.filter(pl.col("name").is_in(_NAMES) & pl.col("step").is_in(list(steps)))
    reasons = pl.when(pl.col("name") == GPU_SLOWDOWNS).then("value").cast(pl.Int64)
    values = ("total", "largest", "first", "last")
    return join_readings(
        own.select(
            "rank",
            "name",
            *(
                ((reasons & bit) != 0).fill_null(value=False).cast(pl.Int64).alias(words)
                for bit, words in SLOWDOWNS.items()
            ),
            *(pl.col("value").alias(each) for each in values),
            readings=pl.lit(1, pl.Int64),
            first_ns="time_ns",
            last_ns="time_ns",
        )
    )


def join_readings(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the same for rows of several tables of read_clocks."""
    return rows.group_by("rank", "name", maintain_order=True).agg(
        pl.sum("readings", "total", *SLOWDOWNS.values()),
        pl.max("largest"),
        pl.col("first").get(pl.col("first_ns").arg_min()),
        pl.col("last").get(pl.col("last_ns").arg_max()),
        pl.min("first_ns"),
        pl.max("last_ns"),
    )


def clock_notes(readings: pl.DataFrame) -> dict[int, str]:
    """Return by rank what its counters showed that those of the other ranks did not; `readings` is from read_clocks.

    A rank without such an observation is missing.
    """
    of_names = {name: readings.filter(pl.col("name") == name).sort("rank") for name in _NAMES}
    notes: dict[int, list[str]] = {}
    for find in (_slow_clocks, _slowdowns, _throttles, _quota_waits):
        for rank, text in find(of_names):
            notes.setdefault(rank, []).append(text)
    return {rank: "; ".join(texts) for rank, texts in notes.items()}


def _slow_clocks(readings: Mapping[str, pl.DataFrame]) -> Iterator[tuple[int, str]]:
    for name, least in LEAST_FRACTION.items():
        means = readings[name].select("rank", pl.col("total") / pl.col("readings"), "readings")
        for rank, value, samples in means.iter_rows():
            others = means.filter(pl.col("rank") != rank)["total"].median()
            if isinstance(others, float) and value <= (1 - least) * others:
                heat = _temperature(readings[GPU_TEMPERATURE], rank) if name == GPU_CLOCK else ""
                text = f"{name} of {value:,.0f} MHz on average{heat}, {others:,.0f} MHz on the other ranks"
                yield rank, f"{text} (n = {samples} readings)"


def _temperature(readings: pl.DataFrame, rank: int) -> str:
    own = readings.filter(pl.col("rank") == rank)["largest"]
    return f" at up to {own[0]:.0f} °C" if len(own) else ""


def _slowdowns(readings: Mapping[str, pl.DataFrame]) -> Iterator[tuple[int, str]]:
    for row in readings[GPU_SLOWDOWNS].iter_rows(named=True):
        for words in SLOWDOWNS.values():
            if row[words]:
                yield row["rank"], f"{words} in {row[words]} of {row['readings']} readings"


def _throttles(readings: Mapping[str, pl.DataFrame]) -> Iterator[tuple[int, str]]:
    for rank, growth, _ in _growth(readings[CPU_THROTTLES]):
        if growth:
            yield rank, f"{growth:,.0f} thermal throttles of the CPU"


def _quota_waits(readings: Mapping[str, pl.DataFrame]) -> Iterator[tuple[int, str]]:
    for rank, growth, length_ns in _growth(readings[CPU_QUOTA_WAIT]):
        if growth >= LEAST_QUOTA_FRACTION * length_ns > 0:
            during = duration_text(length_ns)
            yield rank, f"CPU quota used up for {duration_text(round(growth))} within {during}"


def _growth(readings: pl.DataFrame) -> Iterator[tuple[int, float, int]]:
    """Yield rank, growth of a counter that only grows, and the time between its first and last reading."""
    ends = readings.select("rank", pl.col("last") - pl.col("first"), pl.col("last_ns") - pl.col("first_ns"))
    yield from ends.iter_rows()
