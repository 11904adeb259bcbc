"""The tables of spans and steps of many recordings, converted together, a column at a time.

Polars takes about as long for a column of one recording as for that of a hundred.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.recording.values import nullable, texts
from stagescope.model import SPANS, STEPS
from stagescope.model.tables import KindType, LaneType
from stagescope.vocabulary.kinds import BY_CODE, BY_NAME, KINDS, LANES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from stagescope.ingest.recording.columns import Columns

NUMBERS = ("step", "stage", "chunk", "microbatch", "pair", "peer", "bytes")
TIMES = ("start_ns", "end_ns")
WAIT_TIMES = ("wait_start_ns", "wait_end_ns")


class Records(NamedTuple):
    """Some records of one process, by their `rows`.

    `names` are texts by number, and `offset_ns` is what converts timestamps to the wall clock.
    """

    columns: Columns
    rows: npt.NDArray[np.intp]
    rank: int
    names: Mapping[int, str]
    offset_ns: int


def spans_of(recordings: Sequence[Records]) -> pl.DataFrame:
    """Return the spans table of all records, in the order of the recordings."""
    offsets_ns = _repeated([each.offset_ns for each in recordings], recordings, np.int64)
    columns: dict[str, pl.Series] = {name: nullable(_column(name, recordings)) for name in NUMBERS}
    for name in TIMES:
        columns[name] = pl.Series(_column(name, recordings) + offsets_ns)
    for name in WAIT_TIMES:
        columns[name] = nullable(_column(name, recordings)) + pl.Series(offsets_ns)
    columns["rank"] = pl.Series(_repeated([each.rank for each in recordings], recordings, np.int32))
    columns["kind"] = _enum(_column("kind", recordings), _KIND_POSITION, KindType)
    columns["lane"] = _enum(_column("lane", recordings), _LANE_POSITION, LaneType)
    columns["name"] = texts([(each.columns["name"][each.rows], each.names) for each in recordings])
    return pl.DataFrame({c.name: columns[c.name].cast(c.dtype) for c in SPANS.columns})


def steps_of(markers: Sequence[Records]) -> pl.DataFrame:
    """Return the steps table of all records, each of which marks a step."""
    offsets_ns = _repeated([each.offset_ns for each in markers], markers, np.int64)
    return pl.DataFrame(
        {
            "step": _column("step", markers),
            "rank": _repeated([each.rank for each in markers], markers, np.int32),
            "start_ns": _column("start_ns", markers) + offsets_ns,
            "end_ns": _column("end_ns", markers) + offsets_ns,
        },
        schema=dict(STEPS.schema),
    )


def _column(name: str, recordings: Sequence[Records]) -> npt.NDArray[Any]:
    return np.concatenate([each.columns[name][each.rows] for each in recordings])


def _repeated(values: Sequence[int], recordings: Sequence[Records], dtype: type) -> npt.NDArray[Any]:
    """Return the value of each recording for each of its records."""
    return np.repeat(np.array(values, dtype), [len(each.rows) for each in recordings])


def _positions(codes: dict[int, int], fallback: int) -> npt.NDArray[np.uint8]:
    table = np.full(256, fallback, np.uint8)
    for code, position in codes.items():
        table[code] = position
    return table


_KIND_POSITION = _positions(
    {code: KINDS.index(kind) for code, kind in BY_CODE.items()}, KINDS.index(BY_NAME["other"])
)
_LANE_POSITION = _positions({code: code for code in range(len(LANES))}, LANES.index("host"))


def _enum(codes: npt.NDArray[np.uint8], positions: npt.NDArray[np.uint8], dtype: pl.Enum) -> pl.Series:
    """Return codes of the recording as a Polars Enum; unknown codes become the table's fallback."""
    return pl.Series(dtype.categories, dtype=dtype).gather(positions[codes])
