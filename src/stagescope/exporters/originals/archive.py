"""The original traces in one ZIP archive, with a manifest from which Perfetto places all of them on one clock.

Source: docs/reference/perfetto-manifest.md in github.com/google/perfetto (version 1 of the format, read by
trace_processor 58 and later; perfetto_manifest_reader.cc and forwarding_trace_parser.cc at ec5d16b14b).

Every file has the bytes of its original. Those of compressed ones are stored unpacked, and packed again by the archive:
Perfetto refuses a manifest with an entry for a compressed member, because it counts that as an archive of its own. A
Chrome trace has no clock of its own, so its entry pins its timeline to that of one reference file: an event at T of the
file is at T + `offset_ns` of the reference. An offset is fixed, so what a clock drifts within the run remains:
attributes state it for every rank, in nanoseconds.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stagescope.exporters.originals.files import find_originals, no_progress
from stagescope.exporters.writer import Writer, Written
from stagescope.ingest.streams import open_stream
from stagescope.ingest.trace_json.trace_events import EventStream, base_time_ns
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import Any

    from stagescope.exporters.originals.files import Original, Progress
    from stagescope.model import Timeline

MANIFEST = "perfetto_manifest.json"
UNDATED = (1980, 1, 1, 0, 0, 0)
"""The first date of the format: equal inputs give equal archives."""
COPY_BYTES = 1 << 20
PACKED_SUFFIXES = (".gz", ".gzip", ".zst", ".zstd")
SLICE_PHASES = ("X", "B")


class Event(msgspec.Struct, gc=False):
    """What is counted of an event."""

    ph: str = ""


class Member(NamedTuple):
    """One file of the archive: `origin_ns` is its time 0 on the aligned clock, `drift_ns` what it is off at most.

    `size_bytes` is its size, unpacked.
    """

    original: Original
    name: str
    origin_ns: int
    drift_ns: int
    slice_count: int
    flow_count: int
    size_bytes: int


def write(timeline: Timeline, path: Path, on_progress: Progress = no_progress) -> Written:
    """Write the archive of all original traces, and return what was written. Raises OutputError without originals."""
    originals = find_originals(timeline)
    on_progress(0, len(originals))
    names = _names(originals)
    members = _reference_first(
        [_member(original, name) for original, name in zip(originals, names, strict=True)]
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for done, member in enumerate(members, start=1):
            _store(archive, member)
            on_progress(done, len(members))
        # Its place does not matter; a version that does not know it shows the first member instead of nothing.
        archive.writestr(_info(MANIFEST), manifest_text(members))
    return Written(
        path,
        path.stat().st_size,
        sum(member.slice_count for member in members),
        sum(member.flow_count for member in members),
        tuple(member.name for member in members),
        tuple(_drift_note(members)),
    )


def _with_progress(on_progress: Progress) -> Writer:
    return replace(WRITER, write=partial(write, on_progress=on_progress))


WRITER = Writer(
    "perfetto-archive",
    ".zip",
    "the original traces with a perfetto_manifest",
    write,
    with_progress=_with_progress,
)


def _store(archive: zipfile.ZipFile, member: Member) -> None:
    info = _info(member.name, member.size_bytes)
    with open_stream(member.original.path) as source, archive.open(info, "w") as target:
        while block := source.read(COPY_BYTES):
            target.write(block)


def _info(name: str, size_bytes: int = 0) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, UNDATED)
    info.compress_type = zipfile.ZIP_DEFLATED
    # Only a member above 2 GiB gets the extension for large files, which trace_processor 55 does not read.
    info.file_size = size_bytes
    return info


def _names(originals: Sequence[Original]) -> list[str]:
    """Return the paths of the members: different ones, and none that Perfetto skips as hidden or takes for packed."""
    names: list[str] = []
    for original in originals:
        own = original.path.name.lstrip(".") or "trace.json"
        while own.lower().endswith(PACKED_SUFFIXES):
            own = own.rpartition(".")[0]
        name, number = f"rank-{original.rank:05}/{own}", 1
        while name in names:  # windows of one rank, in folders of their own
            number += 1
            name = f"rank-{original.rank:05}/{number}-{own}"
        names.append(name)
    return names


def _unpacked_bytes(path: Path) -> int:
    size_bytes = 0
    with open_stream(path) as source:
        while block := source.read(COPY_BYTES):
            size_bytes += len(block)
    return size_bytes


def _member(original: Original, name: str) -> Member:
    stream: EventStream[Event] = EventStream(original.path, msgspec.json.Decoder(list[Event]))
    slices = flows = 0
    for piece in stream.pieces():
        slices += sum(event.ph in SLICE_PHASES for event in piece)
        flows += sum(event.ph == "s" for event in piece)
    clock = original.clock
    # The aligned moments of the file as raw ones: corrections are tiny against the run.
    first_ns, last_ns = (
        moment - clock.fixed_offset(moment, moment)[0] for moment in (original.first_ns, original.last_ns)
    )
    offset_ns, drift_ns = clock.fixed_offset(first_ns, last_ns)
    origin_ns = (base_time_ns(stream.facts) or 0) + offset_ns
    size_bytes = _unpacked_bytes(original.path)
    return Member(original, name, origin_ns, drift_ns, slices, flows, size_bytes)


def _reference(members: Sequence[Member]) -> Member:
    """Return the file whose time 0 is first."""
    return min(members, key=lambda member: member.origin_ns)


def _reference_first(members: list[Member]) -> list[Member]:
    """Return the members with the reference first by name.

    Perfetto reads members in the order of their names, counts time on the clock of the first one, and drops what is
    before 0 on it, where only the reference has no events.
    """
    reference = _reference(members)
    if reference.name == min(member.name for member in members):
        return members
    return [member._replace(name=f"0-{member.name}") if member is reference else member for member in members]


def manifest_text(members: Sequence[Member]) -> str:
    """Return the manifest; no offset is negative."""
    reference = _reference(members)
    attributes: dict[str, int | str] = {"stagescope.reference_origin_ns": reference.origin_ns}
    for member in members:
        attributes |= _attributes(member)
    files = [_entry(member, reference) for member in members]
    manifest = {"perfetto_manifest": {"version": 1, "files": files, "attributes": attributes}}
    # Perfetto recognizes a manifest by these first bytes.
    return json.dumps(manifest, separators=(",", ":"), ensure_ascii=False)


def _entry(member: Member, reference: Member) -> dict[str, Any]:
    # Ranks of one host have equal process ids for their devices, which Perfetto would merge on one machine.
    place = f" on {member.original.machine}" if member.original.machine else ""
    entry: dict[str, Any] = {"path": member.name, "machine": {"name": f"rank {member.original.rank}{place}"}}
    if member is not reference:
        offset_ns = member.origin_ns - reference.origin_ns
        entry["clocks"] = {"sync_to": {"file": reference.name}, "offset_ns": offset_ns}
    return entry


def _attributes(member: Member) -> dict[str, int]:
    """Return how well the clock of a rank is aligned; what is unknown is left out."""
    clock, prefix = member.original.clock, f"stagescope.rank_{member.original.rank}"
    known = {
        "drift_residual_ns": member.drift_ns,
        "estimated_error_ns": clock.estimated_error_ns,
        "error_lo_ns": clock.error_lo_ns,
        "error_hi_ns": clock.error_hi_ns,
    }
    return {f"{prefix}.{name}": value for name, value in known.items() if value is not None}


def _drift_note(members: Sequence[Member]) -> list[Diagnostic]:
    worst = max(members, key=lambda member: member.drift_ns)
    if not worst.drift_ns:
        return []
    text = (
        f"an offset is fixed, so the drift of the clocks within the run remains: at most {worst.drift_ns} ns"
        f" (rank {worst.original.rank}); a merged trace is corrected event by event"
    )
    return [Diagnostic("info", text, code="clock.drift_remains")]
