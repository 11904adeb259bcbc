"""The records of the level files. Their size is fixed, so the n-th is found without reading the others.

`spans` has every span, ordered by row, lane and start, so that a span's place is its id; `facts` has, beside it, what
only details need, and is left out where no span has any. `level-J` has blocks of the level whose bins are 2^J
nanoseconds wide, in the same order. Times count from the run's base, a wait from its span's start; a field's lowest
value is null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.vocabulary.kinds import LANES

if TYPE_CHECKING:
    import numpy.typing as npt

    Records = npt.NDArray[np.void]

LANE_COUNT = len(LANES)
FULL = 255
"""`busy` of a block that is covered from its start to its end."""

SPAN = np.dtype(
    [
        ("start", "<i8"),
        ("duration", "<i8"),
        ("microbatch", "<i4"),
        ("step", "<i4"),
        ("stage", "<i4"),
        ("chunk", "<i2"),
        ("kind", "u1"),
        ("lane", "u1"),
        ("sublane", "u1"),
        ("sublanes", "u1"),
    ]
)
FACTS = np.dtype(
    [
        ("bytes", "<i8"),
        ("wait", "<i8"),
        ("wait_duration", "<i8"),
        ("pair", "<i4"),
        ("peer", "<i4"),
        ("name", "<i4"),
    ]
)
BLOCK = np.dtype(
    [
        ("start", "<i8"),
        ("duration", "<i8"),
        ("count", "<u4"),
        ("kind", "u1"),
        ("lane", "u1"),
        ("busy", "u1"),
        ("spare", "u1"),
    ]
)
NEVER_NULL = frozenset({"start", "duration", "kind", "lane", "sublane", "sublanes", "count", "busy"})


def none_of(dtype: np.dtype[np.void], name: str) -> int:
    """Return the value that represents null in a field: the lowest of its type."""
    return int(np.iinfo(dtype[name]).min)


def pack(frame: pl.DataFrame, dtype: np.dtype[np.void]) -> Records:
    """Return the columns of a frame as records; columns that the frame lacks are null."""
    records = np.zeros(frame.height, dtype)
    for name in dtype.names or ():
        if name in frame.columns:
            column = frame[name]
            values = column if name in NEVER_NULL else column.fill_null(none_of(dtype, name))
            records[name] = values.to_numpy()
        elif name not in NEVER_NULL:
            records[name] = none_of(dtype, name)
    return records


def unpack(records: Records) -> pl.DataFrame:
    """Return records as a frame of 64-bit numbers, null where they hold none."""
    columns = []
    for name in records.dtype.names or ():
        column = pl.Series(name, np.ascontiguousarray(records[name]))
        if name not in NEVER_NULL:
            empty = none_of(records.dtype, name)
            column = column.to_frame().select(pl.when(pl.col(name) != empty).then(pl.col(name))).to_series()
        columns.append(column)
    return pl.DataFrame(columns)
