"""Reader of stagescope's own recordings (``*.sscope``, one per process; the format is in record/format.py).

Timestamps are converted from each machine's monotonic clock to the wall clock by ONE offset per machine, so that
nothing changes within a machine. Across machines this is only as precise as their wall clocks, which the clocks table
states. Actions timed on a device were already converted to the monotonic clock by the recorder, with an error that it
stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stagescope.ingest.reader import Reader, ReadOptions
from stagescope.ingest.recording import errors
from stagescope.ingest.recording.diagnostics import damage_of, device_notes, run_notes
from stagescope.ingest.recording.frames import Columns, Contents, read_contents
from stagescope.ingest.recording.segments import Part, join_segments
from stagescope.ingest.streams import open_stream
from stagescope.model import CLOCKS, RANKS, SPANS, STEPS, Timeline
from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.tables import KindType, LaneType
from stagescope.model.validate import conform, in_order
from stagescope.record import format as fmt
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.kinds import BY_CODE, BY_NAME, KINDS, LANES, STEP_CODE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

RANK_IN_NAME = re.compile(r"rank-?(\d+)")
"""Where a header is damaged, the rank is taken from the file name: rank-00003.sscope, or formerly rank00003-7.sscope.
"""


@dataclass(frozen=True)
class Process:
    """One recording: its rank and content."""

    rank: int
    source: str
    contents: Contents

    @property
    def host(self) -> str | None:
        """Host name as seen by the process."""
        host = self.contents.header.get("host")
        return str(host) if host else None

    @property
    def clock(self) -> str:
        """Clock domain: one per boot of a machine, because all its processes share the monotonic clock."""
        header = self.contents.header
        return f"{header.get('boot') or self.host or self.source}/{header.get('clock', 'unknown')}"


def recognize_recording(path: Path, head: bytes) -> bool:
    """Return whether a file is a recording: it begins with a frame, or has the suffix and contains a frame."""
    if head.startswith(fmt.MAGIC):
        return True
    if fmt.SUFFIX not in path.suffixes:
        return False
    return any(isinstance(item, fmt.Frame) for item in fmt.scan_frames(_bytes_of(path)))


def read_recordings(paths: Sequence[Path], options: ReadOptions | None = None) -> Timeline:
    """Return the Timeline of all given recordings, which belong to one run.

    Damage is counted in diagnostics, and every valid frame is used. Raises InputError for two recordings of one rank,
    for a file of a newer format, and if the rank of no file is known.
    """
    processes, lost = _read_processes(paths, options or ReadOptions())
    _check_ranks_once(processes)
    clocks = _clocks(processes)
    offsets = dict(zip(clocks["clock"], clocks["offset_ns"], strict=True))
    runs = {process.contents.header.get("run") for process in processes} - {None, ""}
    markers, spans = [], []
    notes: list[Diagnostic] = []
    for process in processes:
        records = process.contents.spans
        is_marker = records["kind"] == STEP_CODE
        offset_ns = offsets[process.clock]
        markers.append(_steps(records.where(is_marker), process.rank, offset_ns))
        spans.append(_spans(records.where(~is_marker), process, offset_ns))
        notes += damage_of(process.contents, process.source, process.rank)
    return Timeline(
        spans=in_order(pl.concat(spans), SPANS),
        ranks=_ranks(processes),
        steps=pl.concat(markers).sort(STEPS.order),
        clocks=clocks,
        diagnostics=diagnostics_table(
            [*lost, *notes, *device_notes(p.contents for p in processes), *run_notes(len(runs))]
        ),
    )


def _bytes_of(path: Path) -> bytes:
    with open_stream(path) as stream:
        return stream.read()


def _read_processes(paths: Sequence[Path], options: ReadOptions) -> tuple[list[Process], list[Diagnostic]]:
    processes, lost = [], []
    parts = []
    for path in paths:
        parts.append(Part(path, read_contents(_bytes_of(path))))
        options.done(path)
    for (path, contents), notes in join_segments(parts):
        lost += notes
        version = contents.header.get("version", fmt.FORMAT_VERSION)
        if version > fmt.FORMAT_VERSION:
            raise errors.newer_version(path, version, fmt.FORMAT_VERSION)
        rank = contents.header.get("rank", _rank_in_name(path))
        if rank is None:
            spans = len(contents.spans)
            text = f"the header is missing: {spans} spans of an unknown rank were omitted"
            omitted = Diagnostic("error", text, str(path), count=max(1, spans), code="header.missing")
            lost.append(omitted)
        else:
            processes.append(Process(rank, str(path), contents))
    if not processes:
        raise InputError.damaged(paths[0], "the header is missing, and so is the rank")
    return sorted(processes, key=lambda process: process.rank), lost


def _rank_in_name(path: Path) -> int | None:
    found = RANK_IN_NAME.match(path.name)
    return int(found[1]) if found else None


def _check_ranks_once(processes: Sequence[Process]) -> None:
    for one, other in pairwise(processes):
        if one.rank == other.rank:
            raise InputError.duplicate_rank(one.rank, (one.source, other.source))


def _clocks(processes: Sequence[Process]) -> pl.DataFrame:
    """Return one row per machine's clock, with its offset to the wall clock from the tightest anchor.

    Within one machine the error is that of the devices' clocks, 0 if all times are host times.
    """
    rows = []
    machines = _machine_names(processes)
    for clock in machines:
        anchors = np.concatenate([p.contents.anchors for p in processes if p.clock == clock])
        error_ns = max(int(p.contents.device_anchors["error_ns"].max(initial=0)) for p in processes)
        # The reading between the closest two readings has the smallest error.
        best = anchors[anchors["width_ns"].argmin()] if len(anchors) else None
        rows.append(
            {
                "clock": clock,
                "machine": machines[clock],
                "offset_ns": int(best["realtime_ns"] - best["monotonic_ns"]) if best is not None else 0,
                "error_lo_ns": -error_ns if len(machines) == 1 else None,
                "error_hi_ns": error_ns if len(machines) == 1 else None,
                "observation_count": len(anchors),
                "method": "one clock" if len(machines) == 1 else "wall clock",
            }
        )
    return conform(pl.DataFrame(rows, infer_schema_length=None), CLOCKS)


def _machine_names(processes: Sequence[Process]) -> dict[str, str]:
    """Return a readable, distinct name for each clock domain."""
    hosts = {process.clock: process.host or process.clock for process in processes}
    names = list(hosts.values())
    return {
        clock: host if names.count(host) == 1 else f"{host} ({clock[:8]})" for clock, host in hosts.items()
    }


def _ranks(processes: Sequence[Process]) -> pl.DataFrame:
    machines = _machine_names(processes)
    return conform(
        pl.DataFrame([_rank_row(process, machines) for process in processes], infer_schema_length=None), RANKS
    )


def _rank_row(process: Process, machines: dict[str, str]) -> dict[str, Any]:
    header = process.contents.header
    coordinates = {name: header.get("parallel", {}).get(name) for name in ("pp", "dp", "tp", "cp", "ep")}
    return {
        "rank": process.rank,
        "machine": machines[process.clock],
        "device": header.get("device"),
        **coordinates,
        "host": process.host,
        "clock": process.clock,
        "world_size": header.get("world_size"),
        "schedule": header.get("schedule", {}).get("name"),
        "source": process.source,
    }


def _steps(markers: Columns, rank: int, offset_ns: int) -> pl.DataFrame:
    return conform(
        pl.DataFrame(
            {
                "step": markers["step"],
                "rank": np.full(len(markers), rank, np.int32),
                "start_ns": markers["start_ns"] + offset_ns,
                "end_ns": markers["end_ns"] + offset_ns,
            }
        ),
        STEPS,
    )


def _spans(records: Columns, process: Process, offset_ns: int) -> pl.DataFrame:
    """Return the spans table of one process: whole columns, no loop over spans."""
    columns: dict[str, pl.Series] = {}
    for name in ("step", "stage", "chunk", "microbatch", "pair", "peer", "bytes"):
        columns[name] = _nullable(records[name])
    for name in ("start_ns", "end_ns"):
        columns[name] = pl.Series(records[name] + offset_ns)
    for name in ("wait_start_ns", "wait_end_ns"):
        columns[name] = _nullable(records[name]) + offset_ns
    columns["rank"] = pl.repeat(process.rank, len(records), dtype=pl.Int32, eager=True)
    columns["kind"] = _enum(records["kind"], _KIND_POSITION, KindType)
    columns["lane"] = _enum(records["lane"], _LANE_POSITION, LaneType)
    columns["name"] = _texts(records["name"], process.contents.names)
    return pl.DataFrame({c.name: columns[c.name].cast(c.dtype) for c in SPANS.columns})


def _nullable(values: npt.NDArray[Any]) -> pl.Series:
    """Return numbers with null in place of NONE."""
    series = pl.Series(values)
    if not (values == fmt.NONE).any():
        return series
    return series.to_frame("v").select(pl.when(pl.col("v") != fmt.NONE).then("v")).to_series()


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


def _texts(numbers: npt.NDArray[np.uint32], names: dict[int, str]) -> pl.Series:
    """Return the strings of the numbers; 0 is null, and a missing name is shown by its number."""
    if not numbers.any():
        return pl.repeat(None, len(numbers), dtype=pl.String, eager=True)
    used = np.unique(numbers)
    texts = [names.get(int(number), f"name {number} (missing)") if number else None for number in used]
    return pl.Series(texts, dtype=pl.String).gather(np.searchsorted(used, numbers))


READER = Reader(
    "recording",
    (f"*{fmt.SUFFIX}", f"*{fmt.SUFFIX}.gz", f"*{fmt.SUFFIX}.zst"),
    "stagescope's own recordings, one file per process",
    recognize_recording,
    read_recordings,
)
