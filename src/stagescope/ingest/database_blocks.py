"""Read large tables of numbers of a profiler's SQLite file in blocks of numeric columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stagescope.ingest.database import Database
from stagescope.ingest.plausible_times import MAX_NS
from stagescope.ingest.sqlite_access import FAILURES, failure_text
from stagescope.ingest.typed_rows import integer_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

BLOCK_ROWS = 1 << 16
ABSENT = -1
"""The value in the place of null."""

TIMES = ("start", "end")


class BlockDatabase(Database):
    """A database whose large tables are read in blocks."""

    def blocks(self, table: str, names: Sequence[str]) -> Iterator[dict[str, Numbers]]:
        """Yield the columns of a table as integers (ABSENT for null), BLOCK_ROWS rows at a time.

        Reading stops at a damaged page, which is recorded as a fault. So are values that are no integers, which are
        ABSENT, and rows with an impossible `start` or `end`, which are dropped.
        """
        if not self.has(table):
            return
        self.check_table(table)
        wanted = self.columns(table, "t", names).split(", ")
        absent = {name: MAX_NS if name in TIMES else ABSENT for name in names}
        columns = ", ".join(
            f"ifnull({column}, {absent[name]})" for column, name in zip(wanted, names, strict=True)
        )
        # Without an index, rows come in the order of their ids: a page that is read twice shows.
        query = f"SELECT t.rowid, {columns} FROM {table} t NOT INDEXED"  # noqa: S608 - names of ours
        last, count = ABSENT, 0
        try:
            cursor = self.execute(query)
            while rows := cursor.fetchmany(BLOCK_ROWS):
                count += len(rows)
                block, misfits = integer_block(rows, {"rowid": ABSENT, **absent})
                if misfits:
                    self.note(table, f"has values that do not fit, which were ignored ({', '.join(misfits)})")
                if block["rowid"][0] <= last or (np.diff(block["rowid"]) <= 0).any():
                    self.note(table, "has rows several times")
                last = block.pop("rowid")[-1]
                yield self._plausible(table, block)
        except FAILURES as reason:
            self.check_time(table)
            self.note(table, f"cannot be read to its end ({failure_text(reason)}): {count} rows were read")

    def _plausible(self, table: str, block: dict[str, Numbers]) -> dict[str, Numbers]:
        """Return a block without rows with an impossible start or end."""
        plausible = plausible_rows(block)
        if len(plausible.get("start", ())) < len(block.get("start", ())):
            self.note(table, "has rows without a possible start and end, which were dropped")
        return plausible


def plausible_rows(block: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return a block without the rows whose `start` and `end` cannot be those of an interval."""
    start = block.get("start")
    if start is None:
        return block
    end = block.get("end", start)
    is_right = (start > -MAX_NS) & (start <= end) & (end < MAX_NS)
    return block if is_right.all() else {name: values[is_right] for name, values in block.items()}
