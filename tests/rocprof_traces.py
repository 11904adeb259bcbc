"""Write traces like rocprofv3, as a rocpd database or as JSON, with planted ranges, launches and kernels.

The tables are those that rocprofiler-sdk 1.0 creates (source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql), with the
columns that the reader needs and some that it ignores; the JSON has the fields of its generateJSON.cpp. What is planted
comes from nsight_reports.Planted.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

from nsight_reports import STRINGS

RUN = "_00001a2b_53c6_7def_8a9b_0c1d2e3f4a5b"
SCHEMA = """
CREATE TABLE "rocpd_string{run}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT, "string" TEXT NOT NULL);
CREATE TABLE "rocpd_info_node{run}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT, "hash" BIGINT,
    "machine_id" TEXT, "system_name" TEXT, "hostname" TEXT);
CREATE TABLE "rocpd_info_agent{run}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT, "nid" INTEGER,
    "pid" INTEGER, "type" TEXT, "absolute_index" INTEGER, "logical_index" INTEGER, "type_index" INTEGER, "name" TEXT,
    "product_name" TEXT);
CREATE TABLE "rocpd_info_kernel_symbol{run}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT,
    "nid" INTEGER, "pid" INTEGER, "code_object_id" INTEGER, "kernel_name" TEXT, "display_name" TEXT);
CREATE TABLE "rocpd_event{run}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT, "category_id" INTEGER,
    "stack_id" INTEGER, "parent_stack_id" INTEGER, "correlation_id" INTEGER, "extdata" TEXT DEFAULT '{{}}' NOT NULL);
CREATE TABLE "rocpd_region{run}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT, "nid" INTEGER,
    "pid" INTEGER, "tid" INTEGER, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "name_id" INTEGER,
    "event_id" INTEGER);
CREATE TABLE "rocpd_kernel_dispatch{run}" ("id" INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "guid" TEXT,
    "nid" INTEGER, "pid" INTEGER, "tid" INTEGER, "agent_id" INTEGER, "kernel_id" INTEGER, "dispatch_id" INTEGER,
    "queue_id" INTEGER, "stream_id" INTEGER, "start" BIGINT NOT NULL, "end" BIGINT NOT NULL, "event_id" INTEGER);
CREATE VIEW "rocpd_region" AS SELECT * FROM "rocpd_region{run}";
CREATE VIEW "rocpd_kernel_dispatch" AS SELECT * FROM "rocpd_kernel_dispatch{run}";
CREATE VIEW "rocpd_event" AS SELECT * FROM "rocpd_event{run}";
"""
KINDS = ("NONE", "HIP_RUNTIME_API", "MARKER_CORE_API", "MARKER_CONTROL_API", "KERNEL_DISPATCH")
HIP, MARKER, CONTROL, DISPATCH = range(1, 5)
BOOT_NS = 63_855_948_165_371
"""When the trace begins, since boot."""

FIRST_GPU = 2
"""The number of the first GPU among all agents: the processors come first."""

MARKS = 1 << 20
"""Correlation ids of ranges begin here."""


def process(thread):
    """Return the process of a thread of Planted."""
    return thread >> 24 & 0xFFFFFF


def write_rocpd(path, planted, *, host="node1", names=STRINGS, run=RUN, edits=()):
    """Write a database and return its path; `edits` are SQL statements run last."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA.format(run=run))
        add = _adder(database, run)
        add("rocpd_info_node", id=1, hash=7, machine_id="0a1b", system_name="Linux", hostname=host)
        for agent in range(8 + FIRST_GPU):
            is_gpu = agent >= FIRST_GPU
            title, number = ("gfx950", agent - FIRST_GPU) if is_gpu else ("AMD EPYC 9575F", agent)
            product = "AMD Instinct MI355X" if is_gpu else title
            add("rocpd_info_agent", id=agent, nid=1, type="GPU" if is_gpu else "CPU", absolute_index=agent,
                type_index=number, name=title, product_name=product)  # fmt: skip
        for number, name in names.items():
            add("rocpd_info_kernel_symbol", id=number, kernel_name=f"_Z{name}", display_name=name)
        for number, (start, end, _, name, _, thread) in enumerate(planted.ranges):
            event = add(
                "rocpd_event",
                stack_id=MARKS + number,
                extdata=json.dumps({"message": name}),
                correlation_id=0,
            )
            _region(add, MARKS + number, thread, (start, end), event)
        for start, end, _, thread, correlation, *_ in planted.launches:
            event = add("rocpd_event", stack_id=correlation, extdata="{}", correlation_id=0)
            _region(add, correlation, thread, (start, end), event)
        for number, row in enumerate(planted.kernels):
            start, end, device, _, stream, correlation, owner, name, *_ = row
            event = add("rocpd_event", stack_id=correlation, extdata="{}", correlation_id=0)
            add("rocpd_kernel_dispatch", id=number + 1, nid=1, pid=process(owner), tid=process(owner),
                agent_id=device + FIRST_GPU, kernel_id=name, dispatch_id=number + 1, queue_id=stream % 4,
                stream_id=stream, start=BOOT_NS + start, end=BOOT_NS + end, event_id=event)  # fmt: skip
        for statement in edits:
            database.execute(statement.format(run=run))
        database.commit()
    return path


def _adder(database, run):
    def add(table, **values):
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        statement = f'INSERT INTO "{table}{run}" ({names}) VALUES ({marks})'  # noqa: S608 - names of the schema above
        return database.execute(statement, tuple(values.values())).lastrowid

    return add


def _region(add, number, thread, times, event):
    start, end = (BOOT_NS + time for time in times)
    add("rocpd_region", id=number, nid=1, pid=process(thread), tid=thread & 0xFFFFFF, start=start, end=end,
        name_id=1, event_id=event)  # fmt: skip


def rocprof_json(planted, *, host="node1", names=STRINGS):
    """Return the JSON of one process as Python objects; all that is planted must be of one process."""
    owners = {process(row[5]) for row in planted.ranges} | {process(row[6]) for row in planted.kernels}
    (pid,) = owners
    agents = [
        {"size": 312, "id": {"handle": 37944 + agent}, "type": 1 if agent < FIRST_GPU else 2, "name": "gfx950",
         "product_name": "AMD Instinct MI355X", "logical_node_type_id": max(agent - FIRST_GPU, 0)}
        for agent in range(8 + FIRST_GPU)
    ]  # fmt: skip
    ranges = [
        _record(MARKER, row[5], MARKS + number, (row[0], row[1])) for number, row in enumerate(planted.ranges)
    ]
    texts = [{"key": MARKS + number, "value": row[3]} for number, row in enumerate(planted.ranges)]
    control = _record(CONTROL, planted.ranges[0][5], 1 << 30, (0, 10**9)) if planted.ranges else None
    kernels = [
        {**_record(DISPATCH, owner, correlation, (start, end)), "stream_id": {"handle": 0},
         "dispatch_info": {"size": 72, "agent_id": {"handle": 37944 + FIRST_GPU + device},
                           "queue_id": {"handle": stream}, "kernel_id": name, "dispatch_id": number + 1}}
        for number, (start, end, device, _, stream, correlation, owner, name, *_) in enumerate(planted.kernels)
    ]  # fmt: skip
    calls = [_record(HIP, row[3], row[4], (row[0], row[1])) for row in planted.launches]
    found = {
        "metadata": {"node": {"hostname": host}, "pid": pid, "init_time": BOOT_NS, "command": ["python"]},
        "agents": agents,
        "strings": {
            "callback_records": [],
            "buffer_records": [{"kind": kind, "operations": ["NONE"]} for kind in KINDS],
            "marker_api": texts,
        },
        "kernel_symbols": [
            {"kernel_id": number, "kernel_name": f"_Z{name}", "formatted_kernel_name": name}
            for number, name in names.items()
        ],
        "buffer_records": {
            "kernel_dispatch": kernels,
            "hip_api": calls,
            "hsa_api": [],
            "marker_api": [*ranges, *([control] if control else [])],
        },
    }
    return {"rocprofiler-sdk-tool": [found]}


def _record(kind, thread, correlation, times):
    start, end = (BOOT_NS + time for time in times)
    return {
        "size": 72, "kind": kind, "operation": 0, "thread_id": thread & 0xFFFFFF,
        "correlation_id": {"internal": correlation, "external": 0}, "start_timestamp": start, "end_timestamp": end,
    }  # fmt: skip


def write_rocprof_json(path, planted, **options):
    """Write a JSON file and return its path."""
    path.write_text(json.dumps(rocprof_json(planted, **options)), encoding="utf-8")
    return path
