"""Records of spans as one array per field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stagescope.record import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

SPAN_DTYPE = np.dtype(list(fmt.SPAN_FIELDS))
BLOCK_BYTES = 64 * 2**10


@dataclass(frozen=True)
class Columns:
    """Fields of SPANS records as one contiguous array each."""

    arrays: dict[str, npt.NDArray[Any]]
    height: int

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return one column."""
        return self.arrays[name]

    def __len__(self) -> int:
        """Return the number of records."""
        return self.height

    def blocks(self) -> Iterator[Columns]:
        """Yield the records a part at a time; here, all at once."""
        yield self

    def where(self, chosen: npt.NDArray[np.bool_]) -> Columns:
        """Return the records for which `chosen` is true."""
        if chosen.all():
            return self
        return Columns({name: column[chosen] for name, column in self.arrays.items()}, int(chosen.sum()))

    def __reduce__(self) -> tuple[Any, ...]:
        # One process gets the surveys of all recordings, whose empty arrays would take 10 kB each, twice.
        return (Columns, (self.arrays, self.height)) if self.height else (no_columns, ())


@cache
def no_columns() -> Columns:
    """Return the columns of no records."""
    return split_columns([])


def concatenated(tables: Sequence[Columns]) -> Columns:
    """Return the records of all tables, one after the other."""
    if len(tables) == 1:
        return tables[0]
    arrays = {name: np.concatenate([table[name] for table in tables]) for name in no_columns().arrays}
    return Columns(arrays, sum(map(len, tables)))


def split_columns(payloads: Sequence[memoryview]) -> Columns:
    """Return the records of all payloads as columns.

    Works in blocks that stay in the processor's cache: one pass over the file's bytes, without a second copy of all
    records, which would cost more than everything else together.
    """
    count = sum(map(len, payloads)) // SPAN_DTYPE.itemsize
    fields = {name: SPAN_DTYPE[name] for name in SPAN_DTYPE.names or () if name != "reserved"}
    columns = Columns({name: np.empty(count, dtype) for name, dtype in fields.items()}, count)
    filled = 0
    for block in _blocks(payloads):
        records = np.frombuffer(block, SPAN_DTYPE)
        for name, column in columns.arrays.items():
            column[filled : filled + len(records)] = records[name]
        filled += len(records)
    return columns


def _blocks(payloads: Sequence[memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the payloads in order, with small ones joined."""
    pending: list[memoryview] = []
    pending_bytes = 0
    for payload in payloads:
        pending.append(payload)
        pending_bytes += len(payload)
        if pending_bytes >= BLOCK_BYTES:
            yield pending[0] if len(pending) == 1 else b"".join(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield b"".join(pending)
