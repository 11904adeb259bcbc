"""The events of a Chrome trace that begin, end or are slices, as a table with a number for each text.

As texts, the events of a file would take several times as much memory as its slices, of which most repeat.
"""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stagescope.ingest.mapping.slices import (
    BEGINS,
    ENDS,
    NO_NAME,
    argument_columns,
    argument_text,
    coded,
    decoded,
)
from stagescope.ingest.trace_json.repair import REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

PHASES = ("X", *BEGINS, *ENDS)
TEXTS = ("ph", "name", "category", "process", "thread", "id")
TIMES = {"ts": pl.Float64, "dur": pl.Float64}
NO_ARGUMENTS = msgspec.Raw(b"")
DECODE_ARGUMENTS = msgspec.json.Decoder(dict[str, Any]).decode


class Event(msgspec.Struct, gc=False):
    """The relevant fields of one trace event."""

    ph: str = ""
    name: str = ""
    cat: str | None = ""
    ts: float = nan
    dur: float = nan
    pid: int | str = 0
    tid: int | str = 0
    id: int | float | str | None = None
    id2: Any = None
    args: msgspec.Raw = NO_ARGUMENTS


class TextNumbers(dict[str, int]):
    """The numbers of texts, in the order in which they are first looked up."""

    def __missing__(self, text: str) -> int:
        """Return the next number."""
        number = self[text] = len(self)
        return number


class EventTable:
    """The events of one file that begin, end or are slices, and the names of processes and threads.

    The texts of a column are numbered in the order in which they are first seen.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Prepare a table with a column for each of the arguments."""
        self._keys = tuple(arguments)
        columns = (*TEXTS, *argument_columns(arguments))
        self._numbers = {name: TextNumbers() for name in columns}
        self._numbers["ph"].update((phase, number) for number, phase in enumerate(PHASES))
        self._numbers["name"][""] = NO_NAME
        self._of_arguments = [self._numbers[name] for name in argument_columns(arguments)]
        self._schema = {
            **dict.fromkeys(TEXTS, pl.UInt32),
            **TIMES,
            **dict.fromkeys(columns[len(TEXTS) :], pl.UInt32),
        }
        self._parts = [pl.DataFrame(schema={name: self._schema[name] for name in (*TEXTS, *TIMES)})]
        self._processes: dict[str, str] = {}
        self._threads: dict[tuple[str, str], str] = {}
        self.height = 0

    def add(self, events: Iterable[Event]) -> None:
        """Add the events of one piece of the file."""
        rows = []
        phases, names, categories, processes, threads, ids = (self._numbers[name] for name in TEXTS)
        for event in events:
            if event.ph in phases:
                lane = processes[str(event.pid)], threads[str(event.tid)]
                texts = phases[event.ph], names[event.name], categories[event.cat or ""], *lane
                rows.append((*texts, ids[_pair_id(event)], event.ts, event.dur, *self._arguments(event)))
            elif event.ph == "M":
                self._note(event)
        self.height += len(rows)
        part = pl.DataFrame(rows, self._schema, orient="row")
        # A column takes 4 bytes per row, also where all are null.
        optional = part.columns[len(TEXTS) + len(TIMES) :]
        self._parts.append(part.drop(name for name in optional if part[name].null_count() == part.height))

    def frame(self) -> pl.DataFrame:
        """Return the events in the order of the file, without columns for arguments that no event has.

        Instead of texts it has their numbers, except for `ph`.
        """
        found = pl.concat(self._parts, how="diagonal")
        self._parts.clear()
        for name in found.columns:
            if name in self._numbers:  # column by column, so that both forms of only one are in memory
                found = found.with_columns(pl.col(name).cast(_number_type(len(self._numbers[name]))))
        return found.with_columns(decoded(found["ph"], PHASES).alias("ph"))

    def with_texts(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the frame with the texts of its numbers, and the names of its processes and threads.

        Metadata events state these names.
        """
        of_process, of_thread = self._numbers["process"], self._numbers["thread"]
        processes = [(number, self._processes.get(process)) for process, number in of_process.items()]
        threads = [
            (of_process[process], of_thread[thread], name)
            for (process, thread), name in self._threads.items()
            if process in of_process and thread in of_thread
        ]
        lane = frame.select("process", "thread")
        process, thread = lane.schema["process"], lane.schema["thread"]
        titles = pl.DataFrame(processes, {"process": process, "process_name": pl.String}, orient="row")
        names: dict[str, Any] = {"process": process, "thread": thread, "thread_name": pl.String}
        labels = lane.join(coded(titles), on="process", how="left", maintain_order="left").join(
            coded(pl.DataFrame(threads, names, orient="row")),
            on=["process", "thread"],
            how="left",
            maintain_order="left",
        )
        return frame.with_columns(labels["process_name"], labels["thread_name"]).with_columns(
            decoded(frame[name], list(numbers)).alias(name)
            for name, numbers in self._numbers.items()
            if name in frame.columns
        )

    def _arguments(self, event: Event) -> Iterable[int | None]:
        found = decoded_arguments(event.args) if self._keys else {}
        if not found:
            return (None for _ in self._keys)
        texts = (argument_text(found, key) for key in self._keys)
        return (
            None if text is None else numbers[text]
            for numbers, text in zip(self._of_arguments, texts, strict=True)
        )

    def _note(self, event: Event) -> None:
        name = decoded_arguments(event.args).get("name")
        if isinstance(name, str) and event.name == "process_name":
            self._processes[str(event.pid)] = name
        elif isinstance(name, str) and event.name == "thread_name":
            self._threads[str(event.pid), str(event.tid)] = name


def _number_type(count: int) -> pl.DataType | type[pl.DataType]:
    """Return the smallest type of so many different numbers."""
    return next((dtype for dtype, most in ((pl.UInt8, 2**8), (pl.UInt16, 2**16)) if count <= most), pl.UInt32)


def _pair_id(event: Event) -> str:
    """Return by what asynchronous events of one category and name are paired."""
    if isinstance(event.id2, dict):
        return str(event.id2.get("global", event.id2.get("local")))
    return str(event.id)


def decoded_arguments(arguments: msgspec.Raw) -> dict[str, Any]:
    """Return the arguments of an event; empty if they are no object."""
    if not arguments:
        return {}
    try:
        return DECODE_ARGUMENTS(arguments)
    except REFUSALS:  # not an object, or text that is not valid
        return {}
