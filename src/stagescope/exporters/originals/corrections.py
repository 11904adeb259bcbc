"""The clock correction of every rank, as the table of clocks has it, for timestamps of its original file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.model import Timeline

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RankClock:
    """The correction of the clock of one rank: linear pieces from `start_ns` (raw) on, as in clocks.Correction.

    `estimated_error_ns` and the guaranteed bound are the widest of all pieces; None where one is unknown.
    """

    start_ns: Ints
    offset_ns: Ints
    rate: Floats
    error_lo_ns: int | None = None
    error_hi_ns: int | None = None
    estimated_error_ns: int | None = None

    def at(self, timestamps_ns: Ints) -> Ints:
        """Return raw timestamps on the common clock."""
        place = np.maximum(np.searchsorted(self.start_ns, timestamps_ns, side="right") - 1, 0)
        since_ns = timestamps_ns - self.start_ns[place]
        moved = timestamps_ns + self.offset_ns[place] + np.rint(self.rate[place] * since_ns).astype(np.int64)
        return np.asarray(moved)

    def fixed_offset(self, first_ns: int, last_ns: int) -> tuple[int, int]:
        """Return the offset that fits best between two raw timestamps, and by how much it is off at most: the drift."""
        inside = self.start_ns[(self.start_ns > first_ns) & (self.start_ns < last_ns)]
        # The correction is linear within a piece, so its extremes are at the ends of pieces.
        moments = np.unique(np.concatenate([[first_ns, last_ns], inside, inside - 1])).astype(np.int64)
        offsets = self.at(moments) - moments
        low, high = int(offsets.min()), int(offsets.max())
        middle = (low + high) // 2
        return middle, max(high - middle, middle - low)


UNMOVED = RankClock(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1))


def rank_clocks(timeline: Timeline) -> dict[int, RankClock]:
    """Return the correction of every rank of an aligned timeline; ranks without a row in `clocks` are not moved."""
    known = {
        str(name[0]): _clock(pieces)
        for name, pieces in timeline.clocks.sort("start_ns", nulls_last=False).group_by("clock")
    }
    ranks = timeline.ranks.select("rank", "clock").iter_rows()
    return {rank: known.get(clock, UNMOVED) for rank, clock in ranks}


def _clock(pieces: pl.DataFrame) -> RankClock:
    offset_ns = pieces["offset_ns"].to_numpy()
    # A piece starts at a time of the common clock; one without a start applies to all times.
    start_ns = pieces["start_ns"].fill_null(0).to_numpy() - offset_ns
    rate = pieces["drift_ppm"].fill_null(0.0).to_numpy() * 1e-6
    return RankClock(
        start_ns,
        offset_ns,
        rate,
        _widest(pieces["error_lo_ns"], pl.Series.min),
        _widest(pieces["error_hi_ns"], pl.Series.max),
        _widest(pieces["estimated_error_ns"], pl.Series.max),
    )


def _widest(values: pl.Series, choose: object) -> int | None:
    return None if values.null_count() or values.is_empty() else int(choose(values))  # type: ignore[operator] # a method
