"""Split the jobs of a log by launch: a training that is started again appends to the same file.

Evidence, in file order: the banner announces other steps; the steps jump back in time, or ahead by more than any step
takes. A pause of that length within one launch is taken for a new launch, which is harmless: steps continue to be
numbered unless a banner announces other numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    import numpy.typing as npt

LONGEST_PAUSE_NS = 30_000_000_000
LONGEST_PAUSE_STEPS = 10
"""Longest pause between two steps of one launch: half a minute, or ten steps where steps are long."""


def split_launches(jobs: pl.DataFrame, banners: pl.DataFrame) -> pl.DataFrame:
    """Return jobs with launch (from 0), and banner_first and banner_stop, the steps announced by the preceding banner.

    `jobs` are in file order and have byte, start_ns, end_ns, opens (the job opens a step) and is_main (a job of the
    device's calculation stream). `banners` is the frame of log_scan.
    """
    announced = jobs.join_asof(
        banners.rename({"first": "banner_first", "stop": "banner_stop"}), on="byte", strategy="backward"
    )
    begins = np.zeros(jobs.height, np.bool_)
    begins[_jumps(jobs)] = True
    for name in ("banner_first", "banner_stop"):
        value = announced[name]
        begins |= (value != value.shift(1)).fill_null(value=False).to_numpy()
    return announced.with_columns(launch=pl.Series(np.cumsum(begins), dtype=pl.Int32))


def _jumps(jobs: pl.DataFrame) -> npt.NDArray[np.int64]:
    """Return the rows at which a new launch begins by the times: the largest jump between the starts of two steps."""
    is_main = jobs["is_main"].to_numpy()
    rows = np.flatnonzero(is_main)
    start_ns, end_ns = (jobs[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
    opens = np.flatnonzero(jobs["opens"].to_numpy()[rows])
    if len(opens) < 2:  # noqa: PLR2004 - between two of them
        return np.empty(0, np.int64)
    apart_ns = np.diff(start_ns[opens])
    step_ns = np.median(np.maximum.reduceat(end_ns, opens) - start_ns[opens])
    pause_ns = max(LONGEST_PAUSE_NS, LONGEST_PAUSE_STEPS * step_ns)
    found = []
    for step in np.flatnonzero((apart_ns <= 0) | (apart_ns > pause_ns)):
        before, after = opens[step], opens[step + 1]
        direction = 1 if apart_ns[step] > 0 else -1
        # Lines of a step are in any order, so the launch begins at the largest jump, not at the opening job.
        jump_ns = direction * np.diff(start_ns[before : after + 1])
        found.append(rows[before + 1 + int(jump_ns.argmax())])
    return np.array(found, np.int64)
