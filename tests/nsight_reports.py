"""Write reports like `nsys export`, in SQLite or Parquet, with planted ranges, launches and kernels.

The columns are those of the schema that nsys 2025.3 writes as comments into each export, and of the SQLite Schema
Reference in NVIDIA's user guide; columns that the reader ignores are omitted.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field

import polars as pl

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT NOT NULL, name TEXT NOT NULL,
    nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER, uint64Value INTEGER, jsonText TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
    demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, graphNodeId INTEGER);
"""
EPOCH_NS = 1_790_000_000_000_000_000
COMPUTE, NCCL = 7, 20
"""Streams."""

ENGINE = 9
GEMM, SEND_RECV, REDUCE, LAUNCH = range(1, 5)
STRINGS = {GEMM: "sm90_gemm", SEND_RECV: "ncclDevKernel_SendRecv", REDUCE: "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
           LAUNCH: "cudaLaunchKernel_v7000"}  # fmt: skip


def thread(pid, tid=1):
    """Return a globalTid: hardware and virtual machine, then 24 bits of process, then 24 of thread."""
    return (1 << 48) | (pid << 24) | tid


@dataclass
class Planted:
    """The content of a report of one or several processes; times are nanoseconds since the start of the session."""

    ranges: list = field(default_factory=list)
    launches: list = field(default_factory=list)
    kernels: list = field(default_factory=list)
    last: int = 0

    def range(self, name, start, end, pid=100, tid=1):
        """Add a push/pop range."""
        self.ranges.append((start, end, 59, name, None, thread(pid, tid)))

    def kernel(
        self, at, start, end, *, pid=100, tid=1, name=GEMM, stream=COMPUTE, device=0, correlation=None
    ):
        """Add a launch and its kernel; an existing correlation id adds a kernel to that launch, as in a CUDA graph."""
        number = correlation
        if number is None:
            self.last = number = self.last + 1
            self.launches.append((at, at + 2, 0, thread(pid, tid), number, LAUNCH, 0))
        self.kernels.append((start, end, device, 1, stream, number, thread(pid, 0), name, name, None))
        return number


def write_report(path, planted, *, host="node1", epoch_ns=EPOCH_NS, drop=(), texts=True):
    """Write a report and return its path; `drop` are SQL statements run last; without `texts`, names are string ids."""
    strings = dict(STRINGS)
    rows = []
    for start, end, kind, name, _, tid in planted.ranges:
        number = None
        if not texts:
            number = 1000 + len(strings)
            strings[number] = name
        rows.append((start, end, kind, name if texts else None, tid, number))
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        add = database.executemany
        add("INSERT INTO StringIds VALUES (?, ?)", strings.items())
        add(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid, textId) VALUES (?, ?, ?, ?, ?, ?)",
            rows,
        )
        # What nsys adds of its own: the name of a domain, and a mark.
        add("INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) VALUES (?, ?, ?, ?)",
            [(0, 75, "NCCL", thread(100)), (5, 34, "F9.9", thread(100))])  # fmt: skip
        add("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, ?, NULL)", planted.launches)
        add("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", planted.kernels)
        add("INSERT INTO TARGET_INFO_GPU VALUES (0, ?, 'NVIDIA H100')", [(number,) for number in range(8)])
        add("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, 'CPU', 'Hostname', 0, ?)", [(host,)])
        if epoch_ns is not None:
            add("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", [(epoch_ns,)])
        for statement in drop:
            database.execute(statement)
        database.commit()
    return path


def parquet_copy(path, folder):
    """Write the tables of a SQLite report as `nsys export --type parquetdir` does, and return the directory.

    One file per table that has rows, with the columns of SQLite; names of kernels are ids of StringIds in both.
    """
    folder.mkdir()
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            cursor = database.execute(f'SELECT * FROM "{table}"')  # noqa: S608 - names of the schema above
            names = [column[0] for column in cursor.description]
            rows = cursor.fetchall()
            if rows:
                frame = pl.DataFrame(rows, names, orient="row", infer_schema_length=None)
                frame.write_parquet(folder / f"{table}.parquet")
    return folder
