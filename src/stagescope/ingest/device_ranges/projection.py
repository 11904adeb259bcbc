"""Project ranges to the device: from the start of the first kernel launched inside a range to the end of the last.

A launch and its kernels have the same correlation id; a CUDA graph is one launch of many kernels. The kernels of an
action may run on several streams: the action is shown on the stream with the most work of the process, and kernels on
others are counted. An NCCL kernel that sends or receives is a transfer, regardless of the range that launched it.
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
from stagescope.ingest.device_ranges.enclosing_ranges import NO_RANGE, EnclosingRanges
from stagescope.ingest.device_ranges.kernels import LAUNCHED_SCHEMA
from stagescope.ingest.device_ranges.trace import ABSENT, process_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.ingest.device_ranges.trace import DeviceTrace

    Numbers = npt.NDArray[np.int64]

CORRELATION_BITS = 32
GENERIC_KERNEL = "ncclDevKernel_Generic"
WORK_SCHEMA = {
    "action": pl.Int64, "process": pl.Int64, "device": pl.Int64, "stream": pl.Int64, "what": pl.Int8,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "busy_ns": pl.Int64, "kernels": pl.Int64,
}  # fmt: skip


class Projected(NamedTuple):
    """Device work: one row per action, stream and kernel class (WORK_SCHEMA), and one row per transfer.

    `action` is NO_RANGE for a transfer outside of any range; `unlaunched` counts kernels without a recorded launch.
    `kernels` has every kernel (LAUNCHED_SCHEMA) if they are kept.
    """

    work: pl.DataFrame
    transfers: pl.DataFrame
    kernel_count: int
    unlaunched: int
    kernels: pl.DataFrame | None = None


class Launches:
    """The launches of a trace, searchable by process and correlation id."""

    def __init__(self, trace: DeviceTrace, enclosing: EnclosingRanges) -> None:
        keys, actions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for block in trace.launches():
            numbered = block["correlation"] > 0
            thread, start = block["thread"][numbered], block["start_ns"][numbered]
            keys.append(_key(process_of(thread), block["correlation"][numbered]))
            actions.append(enclosing.find(thread, start))
        every = np.concatenate(keys)
        order = np.argsort(every, kind="stable")
        processes = np.unique(every >> CORRELATION_BITS)
        self.only_process = int(processes[0]) if len(processes) == 1 else ABSENT
        self._keys: Numbers = every[order]
        self._actions: Numbers = np.concatenate(actions)[order].astype(np.int32)

    def __len__(self) -> int:
        """Return the number of launches."""
        return len(self._keys)

    def actions(self, process: Numbers, correlation: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return the action that launched each kernel, and whether its launch was recorded."""
        if len(self._keys) == 0:
            return np.full(len(process), NO_RANGE, np.int64), np.zeros(len(process), np.bool_)
        key = _key(process, correlation)
        place = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        known = self._keys[place] == key
        return np.where(known, self._actions[place], NO_RANGE).astype(np.int64), known


def project(
    trace: DeviceTrace, enclosing: EnclosingRanges, of_transfers: npt.ArrayLike = (), *, keep: bool = False
) -> Projected:
    """Return the device work of a trace's kernels, attributed to the actions that enclose their launches.

    With `keep`, the result has each kernel.

    `of_transfers` are the actions that are transfers: RCCL runs most operations in one generic kernel, whose name does
    not state that it sends or receives.
    """
    launches = Launches(trace, enclosing)
    # Kernel names are string ids; classifying the few distinct strings is far cheaper than one per kernel.
    classes = {number: kernel_class(name) for number, name in trace.communication_kernels().items()}
    generic = [number for number, name in trace.communication_kernels().items() if GENERIC_KERNEL in name]
    communicating = np.array(sorted(n for n, what in classes.items() if what != COMPUTE_KERNEL), np.int64)
    work, transfers = [pl.DataFrame(schema=WORK_SCHEMA)], [pl.DataFrame(schema=WORK_SCHEMA)]
    kept = [pl.DataFrame(schema=LAUNCHED_SCHEMA)]
    kernel_count = unlaunched = 0
    for block in trace.kernels():
        absent = block["process"] == ABSENT  # as in exports of Nsight Systems from before 2020
        process = np.where(absent, launches.only_process, block["process"])
        action, known = launches.actions(process, block["correlation"])
        what = np.zeros(len(action), np.int8)
        for place in np.flatnonzero(np.isin(block["name"], communicating)):
            what[place] = classes[int(block["name"][place])]
        what[np.isin(block["name"], generic) & np.isin(action, of_transfers)] = TRANSFER_KERNEL
        kernel_count += len(action)
        unlaunched += int(len(action) - known.sum())
        rows = pl.DataFrame(
            {
                "action": action, "process": process, "device": block["device"], "stream": block["stream"],
                "what": what, "start_ns": block["start_ns"], "end_ns": block["end_ns"],
                "busy_ns": block["end_ns"] - block["start_ns"], "kernels": 1,
            },
            WORK_SCHEMA,
        )  # fmt: skip
        if keep:
            kept.append(rows.with_columns(name_number=pl.Series(block["name"])).select(list(LAUNCHED_SCHEMA)))
        transfers.append(rows.filter(pl.col("what") == TRANSFER_KERNEL))
        work.append(_summed(rows.filter(pl.col("what") != TRANSFER_KERNEL)))
    every = pl.concat([*kept, trace.other_kernels()]) if keep else None
    return Projected(_summed(pl.concat(work)), pl.concat(transfers), kernel_count, unlaunched, every)


def on_main_stream(work: pl.DataFrame, kinds: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return start_ns, end_ns and device of each action on its main stream, and the number of kernels on other streams.

    `kinds` has action and is_reduce: a gradient reduction consists of collectives, any other action of compute kernels.
    """
    attributed = work.filter(pl.col("action") != NO_RANGE).join(kinds, on="action", how="inner")
    own = attributed.filter(
        (pl.col("what") == COMPUTE_KERNEL) | ((pl.col("what") == COLLECTIVE_KERNEL) & pl.col("is_reduce"))
    )
    stream = ["process", "device", "stream"]
    load = own.group_by(stream).agg(load_ns=pl.sum("busy_ns"))
    ordered = own.group_by("action", *stream).agg(
        pl.min("start_ns"), pl.max("end_ns"), pl.sum("kernels")
    ).join(load, on=stream).sort("action", "load_ns", "stream", descending=[False, True, False])  # fmt: skip
    first = ordered.unique("action", keep="first", maintain_order=True)
    on_other_streams = int(ordered["kernels"].sum()) - int(first["kernels"].sum())
    return first.select("action", "start_ns", "end_ns", "device"), on_other_streams


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    return (
        rows.group_by("action", "process", "device", "stream", "what")
        .agg(pl.min("start_ns"), pl.max("end_ns"), pl.sum("busy_ns"), pl.sum("kernels"))
        .select(list(WORK_SCHEMA))
    )


def _key(process: Numbers, correlation: Numbers) -> Numbers:
    """Return one number per process and correlation id: correlation ids are unique only within a process."""
    return ((process & 0xFFFFFF) << CORRELATION_BITS) | (correlation & 0xFFFFFFFF)
