"""Read a rocpd database, which rocprofv3 of ROCm 7 writes by default.

Source: ROCm/rocprofiler-sdk, source/share/rocprofiler-sdk-rocpd/rocpd_tables.sql and
source/lib/output/generateRocpd.cpp (schema 3). The name of each table ends in the id of a run; views without it
combine the runs of a file, and are not read. A region is a call of HIP or HSA or a roctx range; the text of a range is
the `message` in the `extdata` of its event. `stack_id` of an event is the correlation id of the call: a kernel has
that of the call that launched it. Times are ns of CLOCK_BOOTTIME.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stagescope.ingest.database import Database
from stagescope.ingest.device_ranges.memory_trace import KERNELS_SCHEMA, LAUNCHES_SCHEMA, MemoryTrace
from stagescope.ingest.device_ranges.trace import RANGES_SCHEMA, THREAD_BITS, TraceFacts
from stagescope.ingest.rocprof.wording import WORDING, clock_of
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

REGIONS, DISPATCHES, EVENTS = "rocpd_region", "rocpd_kernel_dispatch", "rocpd_event"
AGENTS, NODES, SYMBOLS = "rocpd_info_agent", "rocpd_info_node", "rocpd_info_kernel_symbol"
TIMESTAMPS = "rocpd_timestamp"
RUN = re.compile(r"rocpd_(?:region|kernel_dispatch|event)(|_\w+)", re.ASCII)

REGION_COLUMNS = {
    "pid": "process", "tid": "tid", "start": "start_ns", "end": "end_ns", "event_id": "event",
}  # fmt: skip
DISPATCH_COLUMNS = {
    "pid": "process", "agent_id": "agent", "kernel_id": "name", "queue_id": "queue", "stream_id": "stream",
    "start": "start_ns", "end": "end_ns", "event_id": "event",
}  # fmt: skip
EVENT_COLUMNS = {"id": "event", "stack_id": "correlation", "extdata": "data"}
SYMBOL_COLUMNS = {"id": "number", "display_name": "display", "kernel_name": "symbol"}
AGENT_COLUMNS = {
    "id": "agent", "type": "type", "type_index": "device", "product_name": "product", "name": "title",
}  # fmt: skip
TEXTS = ("data", "display", "symbol", "type", "product", "title", "host")
IN_PROCESS = (1 << THREAD_BITS) - 1


class Message(msgspec.Struct):
    """The extra data of an event."""

    message: str | None = None


MESSAGE = msgspec.json.Decoder(Message)


def is_rocpd(path: Path) -> bool:
    """Return whether a database has the tables of rocpd; raises InputError if that cannot be known."""
    with Database(path) as database:
        return bool(runs_of(database))


def runs_of(database: Database) -> list[str]:
    """Return what the names of the tables of each run end in."""
    return sorted({found[1] for name in database.tables if (found := RUN.fullmatch(name))})


def read_rocpd(path: Path) -> MemoryTrace:
    """Return the trace of a database; raises InputError for one that SQLite cannot read, or of another schema."""
    with Database(path) as database:
        database.check()
        # A view is in `tables` too, but only what can be read counts: names without an id are views in files of AMD.
        runs = [run for run in runs_of(database) if run] or [""]
        if any(database.has(f"{TIMESTAMPS}{run}") for run in runs):
            raise InputError.damaged(path, "a rocpd database of schema 4, which is not read; schema 3 is")
        parts = [_run(database, run, place) for place, run in enumerate(runs)]
        hosts = [host for run in runs for host in _frame(database, NODES, run, {"hostname": "host"})["host"]]
        host = next((found for found in hosts if found), None)
        names: dict[int, str] = {}
        devices: dict[int, str] = {}
        for place, run in enumerate(runs):
            symbols = _frame(database, SYMBOLS, run, SYMBOL_COLUMNS).drop_nulls("number")
            names |= {
                _in_file(place, number): display or symbol or ""
                for number, display, symbol in symbols.iter_rows()
            }
            gpus = _gpus(database, run)
            devices |= {number: product or title or "" for _, number, product, title in gpus.iter_rows()}
        faults = database.diagnostics()
    marks, calls, kernels = (pl.concat(tables) for tables in zip(*parts, strict=True))
    facts = TraceFacts(host, None, devices, clock_of(host))
    return MemoryTrace(path, WORDING, facts, marks, calls, kernels, names, faults)


def _run(database: Database, run: str, place: int) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the ranges, launches and kernels of one run."""
    events = _frame(database, EVENTS, run, EVENT_COLUMNS).drop_nulls("event")
    events = events.unique("event", keep="first", maintain_order=True)
    regions = _frame(database, REGIONS, run, REGION_COLUMNS)
    known = regions.with_columns(thread=_shifted("process") + (pl.col("tid") & IN_PROCESS)).join(
        events, on="event", how="left", maintain_order="left"
    )
    texts = known["data"].drop_nulls().unique().to_list()
    named = known.with_columns(
        name=pl.col("data").replace_strict(
            texts, [_message(text) for text in texts], default=None, return_dtype=pl.String
        )
    )
    is_range = pl.col("name").is_not_null()
    kernels = _frame(database, DISPATCHES, run, DISPATCH_COLUMNS).join(
        events.select("event", "correlation"), on="event", how="left", maintain_order="left"
    )
    gpus = _gpus(database, run).select("agent", "device").unique("agent", keep="first")
    placed = kernels.join(gpus, on="agent", how="left", maintain_order="left")
    if not placed["stream"].drop_nulls().n_unique() > 1:
        placed = placed.with_columns(stream="queue")
    numbered = placed.with_columns(name=pl.lit(_in_file(place, 0), pl.Int64) + pl.col("name"))
    return (
        named.filter(is_range).select(list(RANGES_SCHEMA)),
        named.filter(~is_range).select(list(LAUNCHES_SCHEMA)),
        numbered.select(list(KERNELS_SCHEMA)),
    )


def _shifted(name: str) -> pl.Expr:
    return pl.col(name).clip(0, 2**31) * (1 << THREAD_BITS)


def _in_file(place: int, number: int) -> int:
    """Return one number per run and kernel: numbers of kernels are unique in a run only."""
    return (place << 40) + number


def _gpus(database: Database, run: str) -> pl.DataFrame:
    """Return agent, device (the number among the GPUs of the machine), product and title of each GPU."""
    agents = _frame(database, AGENTS, run, AGENT_COLUMNS).drop_nulls(["agent", "device"])
    return agents.filter(pl.col("type") == "GPU").drop("type")


def _frame(database: Database, table: str, run: str, columns: Mapping[str, str]) -> pl.DataFrame:
    """Return columns of a table under other names; a table that is missing is a fault and empty."""
    schema: dict[str, Any] = {name: pl.String if name in TEXTS else pl.Int64 for name in columns.values()}
    if f"{table}{run}" not in database.tables:
        database.note(f"{table}{run}", "is missing")
    return database.frame(f"{table}{run}", list(columns), schema)


def _message(text: str) -> str | None:
    """Return the message in the extra data of an event."""
    try:
        return MESSAGE.decode(text.encode("utf-8", "replace")).message
    except (msgspec.DecodeError, RecursionError):
        return None
