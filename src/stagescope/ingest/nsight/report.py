"""Read one report that was exported to SQLite: NVTX ranges, launches and kernels. schema.py declares its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.database_blocks import BlockDatabase
from stagescope.ingest.device_ranges.kernels import NO_KERNELS
from stagescope.ingest.nsight.schema import (
    KERNELS,
    LAUNCHES,
    RANGES,
    SESSION,
    STRING_COLUMNS,
    STRINGS,
    STRINGS_SCHEMA,
    WORDING,
    read_facts,
    read_kernels,
    read_launches,
    read_ranges,
)
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt
    import polars as pl

    from stagescope.ingest.device_ranges.trace import TraceFacts

    Numbers = npt.NDArray[np.int64]


class Report(BlockDatabase):
    """A report that is open for reading, as a DeviceTrace; raises InputError like Database."""

    wording = WORDING

    def facts(self) -> TraceFacts:
        """Return the facts about the report's machine."""
        return read_facts(self)

    def ranges(self) -> tuple[pl.DataFrame, int]:
        """Return the NVTX ranges (RANGES_SCHEMA), and the number of ranges still open when the report ended."""
        return read_ranges(self)

    def launches(self) -> Iterator[dict[str, Numbers]]:
        """Yield the launches in blocks."""
        return read_launches(self)

    def kernels(self) -> Iterator[dict[str, Numbers]]:
        """Yield the kernels in blocks."""
        return read_kernels(self)

    def communication_kernels(self) -> dict[int, str]:
        """Return the strings that may be names of NCCL kernels, by id."""
        # Kernel names are string ids; reading only these is far cheaper than reading all strings.
        return self.names_like("ccl")

    def kernel_names(self) -> dict[int, str]:
        """Return all strings of the report by id, which include the names of its kernels."""
        return self.names_like("")

    def other_kernels(self) -> pl.DataFrame:
        """Return no kernels: all are in the table of kernels."""
        return NO_KERNELS

    def names_like(self, word: str) -> dict[int, str]:
        """Return the strings that contain a word, by id."""
        query = f"SELECT t.rowid, {self.columns(STRINGS, 't', STRING_COLUMNS)} FROM {STRINGS} t WHERE t.value LIKE ?"  # noqa: S608 - ours
        found = self.typed(STRINGS, self.rows(STRINGS, query, (f"%{word}%",)), STRINGS_SCHEMA)
        return dict(found.drop_nulls().iter_rows())

    def fault_sentences(self) -> list[str]:
        """Return what is wrong with tables of the report."""
        return [fault.sentence for fault in self.faults]


def is_report(path: Path) -> bool:
    """Return whether a file is an nsys export: it has a table of collected data.

    Raises InputError if that cannot be known, because the file or its schema is damaged.
    """
    with Report(path) as report:
        if any(name in report.tables for name in (RANGES, LAUNCHES, KERNELS, SESSION)):
            return True
        if report.faults:
            raise InputError.damaged(path, report.faults[0].text)
        return False
