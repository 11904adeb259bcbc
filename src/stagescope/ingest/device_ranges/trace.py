"""What the readers of profilers with marked ranges provide of each file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from stagescope.model.diagnostics import Diagnostic

    Numbers = npt.NDArray[np.int64]

THREAD_BITS = 24
ABSENT = -1
"""The value in the place of null in columns of integers."""

RANGES_SCHEMA = {"name": pl.String, "thread": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
LAUNCH_COLUMNS = ("thread", "correlation", "start_ns")
KERNEL_COLUMNS = ("process", "correlation", "stream", "device", "name", "start_ns", "end_ns")


class TraceFacts(NamedTuple):
    """The machine of a trace: host, clock, wall time at which its timestamps are 0, and device names by number.

    `clock` is the name of a clock that several files share; None if every file has its own.
    """

    host: str | None
    epoch_ns: int | None
    devices: dict[int, str]
    clock: str | None = None


class Wording(NamedTuple):
    """How messages name what a profiler writes.

    `ranges` are the marks (``NVTX ranges``), `file` is one file (``report``), `no_ranges` is the hint for a file
    without actions and `no_kernels` the one for a file without kernels, `example` is a pair of file names with ranks,
    `clock_method` describes the clocks.
    """

    ranges: str
    file: str
    no_ranges: str
    no_kernels: str
    example: str
    clock_method: str


class DeviceTrace(Protocol):
    """One open file. Raises InputError if it cannot be read at all; faults of parts are diagnostics.

    A thread is a number whose lowest THREAD_BITS bits are the thread and the others its process, as in the globalTid
    of Nsight Systems.
    """

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def wording(self) -> Wording:
        """How messages name its parts."""

    @property
    def tables(self) -> frozenset[str]:
        """The names of all tables of the file."""

    def facts(self) -> TraceFacts:
        """Return the facts about the machine."""

    def ranges(self) -> tuple[pl.DataFrame, int]:
        """Return the ranges (RANGES_SCHEMA) by start, and the number of those still open when the file ended."""

    def launches(self) -> Iterator[dict[str, Numbers]]:
        """Yield the launches in blocks: LAUNCH_COLUMNS."""

    def kernels(self) -> Iterator[dict[str, Numbers]]:
        """Yield the kernels in blocks: KERNEL_COLUMNS; the name is a number of `communication_kernels` or another."""

    def communication_kernels(self) -> dict[int, str]:
        """Return the names of all kernels that may be of NCCL or RCCL, by number."""

    def kernel_names(self) -> dict[int, str]:
        """Return the names of all kernels, by number; there may be names of other things among them."""

    def other_kernels(self) -> pl.DataFrame:
        """Return kernels that are in no action and only kept on request (LAUNCHED_SCHEMA of kernels.py)."""

    def fault_sentences(self) -> list[str]:
        """Return what is wrong with parts of the file."""

    def diagnostics(self) -> list[Diagnostic]:
        """Return the same as diagnostics; final only after the rest has been read."""


def process_of(thread: Numbers) -> Numbers:
    """Return the process of each thread, or of each globalPid: without the bits of the thread.

    >>> import numpy as np
    >>> process_of(np.array([(7 << 24) + 3, 7 << 24])).tolist()
    [7, 7]
    """
    return thread >> THREAD_BITS


def thread_number(process: Numbers, thread: Numbers) -> Numbers:
    """Return one number per process and thread, of which process_of returns the process.

    >>> import numpy as np
    >>> thread_number(np.array([7]), np.array([3])).tolist() == [(7 << 24) + 3]
    True
    """
    return (process << THREAD_BITS) | (thread & ((1 << THREAD_BITS) - 1))
