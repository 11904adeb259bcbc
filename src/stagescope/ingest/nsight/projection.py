"""Actions and transfers as the device ran them: from the first kernel launched inside a range to the end of the last.

A launch and its kernels have the same correlation id; a graph is one launch of many kernels. The kernels of a action
may run on several streams: the action is drawn on the one that does most of the process's work, and the others are
counted. A kernel of NCCL that sends or receives is a transfer, in whatever range it was launched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.ingest.annotations.kernel_classes import (
    COLLECTIVE_KERNEL,
    COMPUTE_KERNEL,
    TRANSFER_KERNEL,
    kernel_class,
)
from stagescope.ingest.nsight.enclosing_ranges import NO_RANGE, EnclosingRanges
from stagescope.ingest.nsight.report import ABSENT, KERNELS, LAUNCHES, process_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.ingest.nsight.report import Report

    Numbers = npt.NDArray[np.int64]

CORRELATION_BITS = 32
LAUNCH_COLUMNS = ("start", "globalTid", "correlationId")
KERNEL_COLUMNS = ("start", "end", "globalPid", "correlationId", "streamId", "deviceId", "shortName")
WORK_SCHEMA = {
    "action": pl.Int64, "process": pl.Int64, "device": pl.Int64, "stream": pl.Int64, "what": pl.Int8, "start_ns": pl.Int64,
    "end_ns": pl.Int64, "busy_ns": pl.Int64, "kernels": pl.Int64,
}  # fmt: skip


class Projected(NamedTuple):
    """What the device did: per action, stream and class of kernel (WORK_SCHEMA), and every transfer of its own.

    `action` is NO_RANGE for a transfer in no range; `unlaunched` counts kernels whose launch was not recorded.
    """

    work: pl.DataFrame
    transfers: pl.DataFrame
    kernel_count: int
    unlaunched: int


class Launches:
    """The launches of a report, searchable by process and correlation id."""

    def __init__(self, report: Report, enclosing: EnclosingRanges) -> None:
        keys, actions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for block in report.blocks(LAUNCHES, LAUNCH_COLUMNS):
            numbered = block["correlationId"] > 0
            thread, start = block["globalTid"][numbered], block["start"][numbered]
            keys.append(_key(process_of(thread), block["correlationId"][numbered]))
            actions.append(enclosing.find(thread, start))
        every = np.concatenate(keys)
        order = np.argsort(every, kind="stable")
        processes = np.unique(every >> CORRELATION_BITS)
        self.only_process = int(processes[0]) if len(processes) == 1 else ABSENT
        self._keys: Numbers = every[order]
        self._actions: Numbers = np.concatenate(actions)[order].astype(np.int32)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._keys)

    def actions(self, process: Numbers, correlation: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return the action that launched each kernel, and whether the launch was recorded at all."""
        if len(self._keys) == 0:
            return np.full(len(process), NO_RANGE, np.int64), np.zeros(len(process), np.bool_)
        key = _key(process, correlation)
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        known = self._keys[place] == key
        return np.where(known, self._actions[place], NO_RANGE).astype(np.int64), known


def project(report: Report, enclosing: EnclosingRanges) -> Projected:
    """Return what the kernels of a report did for the actions that hold their launches."""
    launches = Launches(report, enclosing)
    classes = {number: kernel_class(name) for number, name in report.names_like("ccl").items()}
    communicating = np.array(sorted(n for n, what in classes.items() if what != COMPUTE_KERNEL), np.int64)
    work, transfers = [pl.DataFrame(schema=WORK_SCHEMA)], [pl.DataFrame(schema=WORK_SCHEMA)]
    kernel_count = unlaunched = 0
    for block in report.blocks(KERNELS, KERNEL_COLUMNS):
        absent = block["globalPid"] == ABSENT  # exports from before 2020 do not say it
        process = np.where(absent, launches.only_process, process_of(block["globalPid"]))
        action, known = launches.actions(process, block["correlationId"])
        what = np.zeros(len(action), np.int8)
        for place in np.flatnonzero(np.isin(block["shortName"], communicating)):
            what[place] = classes[int(block["shortName"][place])]
        kernel_count += len(action)
        unlaunched += int(len(action) - known.sum())
        rows = pl.DataFrame(
            {
                "action": action, "process": process, "device": block["deviceId"], "stream": block["streamId"], "what": what,
                "start_ns": block["start"], "end_ns": block["end"], "busy_ns": block["end"] - block["start"],
                "kernels": 1,
            },
            WORK_SCHEMA,
        )  # fmt: skip
        transfers.append(rows.filter(pl.col("what") == TRANSFER_KERNEL))
        work.append(_summed(rows.filter(pl.col("what") != TRANSFER_KERNEL)))
    return Projected(_summed(pl.concat(work)), pl.concat(transfers), kernel_count, unlaunched)


def on_main_stream(work: pl.DataFrame, kinds: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return start_ns, end_ns, device of each action on one stream, and how many kernels of actions ran on others.

    `kinds` has action and is_reduce: a reduction of gradients is made of collectives, any other action is not.
    """
    told = work.filter(pl.col("action") != NO_RANGE).join(kinds, on="action", how="inner")
    own = told.filter(
        (pl.col("what") == COMPUTE_KERNEL) | ((pl.col("what") == COLLECTIVE_KERNEL) & pl.col("is_reduce"))
    )
    stream = ["process", "device", "stream"]
    load = own.group_by(stream).agg(load_ns=pl.sum("busy_ns"))
    ordered = own.group_by("action", *stream).agg(
        pl.min("start_ns"), pl.max("end_ns"), pl.sum("kernels")
    ).join(load, on=stream).sort("action", "load_ns", "stream", descending=[False, True, False])  # fmt: skip
    first = ordered.unique("action", keep="first", maintain_order=True)
    aside = int(ordered["kernels"].sum()) - int(first["kernels"].sum())
    return first.select("action", "start_ns", "end_ns", "device"), aside


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    return (
        rows.group_by("action", "process", "device", "stream", "what")
        .agg(pl.min("start_ns"), pl.max("end_ns"), pl.sum("busy_ns"), pl.sum("kernels"))
        .select(list(WORK_SCHEMA))
    )


def _key(process: Numbers, correlation: Numbers) -> Numbers:
    """Return one number for process and correlation id: the ids of two processes are the same."""
    return ((process & 0xFFFFFF) << CORRELATION_BITS) | (correlation & 0xFFFFFFFF)
