"""A trace whose ranges, launches and kernels are tables in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.device_ranges.kernels import NO_KERNELS
from stagescope.ingest.device_ranges.trace import (
    ABSENT,
    KERNEL_COLUMNS,
    LAUNCH_COLUMNS,
    RANGES_SCHEMA,
    TraceFacts,
    Wording,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from stagescope.model.diagnostics import Diagnostic

    Numbers = npt.NDArray[np.int64]

LAUNCHES_SCHEMA = dict.fromkeys(LAUNCH_COLUMNS, pl.Int64)
KERNELS_SCHEMA = dict.fromkeys(KERNEL_COLUMNS, pl.Int64)
IS_INTERVAL = pl.col("start_ns").is_not_null() & (pl.col("end_ns") >= pl.col("start_ns"))


@dataclass(frozen=True)
class MemoryTrace:
    """A DeviceTrace of tables: `marks` (RANGES_SCHEMA), `calls` (LAUNCH_COLUMNS) and `dispatches` (KERNEL_COLUMNS).

    `names` are the names of kernels by number, `faults` diagnostics of what was wrong, `beside` are kernels that are in
    no action and only kept on request. Marks without an end were open
    when the file ended.
    """

    path: Path
    wording: Wording
    machine: TraceFacts
    marks: pl.DataFrame
    calls: pl.DataFrame
    dispatches: pl.DataFrame
    names: dict[int, str]
    faults: list[Diagnostic] = field(default_factory=list)
    tables: frozenset[str] = frozenset()
    beside: pl.DataFrame = field(default_factory=NO_KERNELS.clone)

    def facts(self) -> TraceFacts:
        """Return the facts about the machine."""
        return self.machine

    def ranges(self) -> tuple[pl.DataFrame, int]:
        """Return the ranges (RANGES_SCHEMA) by start, and the number of those still open when the file ended."""
        known = self.marks.drop_nulls(["name", "start_ns"]).select(list(RANGES_SCHEMA))
        return known.filter(IS_INTERVAL).sort("start_ns"), known["end_ns"].null_count()

    def launches(self) -> Iterator[dict[str, Numbers]]:
        """Yield the launches in one block."""
        yield _block(self.calls.drop_nulls(["start_ns", "thread"]), LAUNCH_COLUMNS)

    def kernels(self) -> Iterator[dict[str, Numbers]]:
        """Yield the kernels in one block."""
        yield _block(self.dispatches.filter(IS_INTERVAL), KERNEL_COLUMNS)

    def communication_kernels(self) -> dict[int, str]:
        """Return the names that contain ccl, by number."""
        return {number: name for number, name in self.names.items() if "ccl" in name.lower()}

    def kernel_names(self) -> dict[int, str]:
        """Return the names of all kernels, by number."""
        return self.names

    def other_kernels(self) -> pl.DataFrame:
        """Return the kernels that are only kept on request."""
        return self.beside

    def fault_sentences(self) -> list[str]:
        """Return what is wrong with parts of the file."""
        return [fault.message for fault in self.faults]

    def diagnostics(self) -> list[Diagnostic]:
        """Return what is wrong with parts of the file."""
        return list(self.faults)


def _block(rows: pl.DataFrame, names: tuple[str, ...]) -> dict[str, Numbers]:
    return {name: rows[name].cast(pl.Int64).fill_null(ABSENT).to_numpy() for name in names}
