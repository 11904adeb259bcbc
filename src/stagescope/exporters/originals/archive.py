"""The original traces in one ZIP archive, with a manifest from which Perfetto places all of them on one clock.

Source: docs/reference/perfetto-manifest.md in github.com/google/perfetto (version 1 of the format, read by
trace_processor 58 and later). Every file is stored byte for byte. A Chrome trace has no clock of its own, so its entry
pins its timeline to that of one reference file: an event at T of the file is at T + `offset_ns` of the reference. An
offset is fixed, so what a clock drifts within the run remains: attributes state it for every rank, in nanoseconds.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stagescope.exporters.originals.files import find_originals, no_progress
from stagescope.exporters.writer import Writer, Written
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
SLICE_PHASES = ("X", "B")


class Event(msgspec.Struct, gc=False):
    """What is counted of an event."""

    ph: str = ""


class Member(NamedTuple):
    """One file of the archive: `origin_ns` is its time 0 on the aligned clock, `drift_ns` what it is off at most."""

    original: Original
    name: str
    origin_ns: int
    drift_ns: int
    slice_count: int
    flow_count: int


def write(timeline: Timeline, path: Path, on_progress: Progress = no_progress) -> Written:
    """Write the archive of all original traces, and return what was written. Raises OutputError without originals."""
    originals = find_originals(timeline)
    on_progress(0, len(originals))
    members = [_member(original) for original in originals]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for done, member in enumerate(members, start=1):
            with (
                member.original.path.open("rb") as source,
                archive.open(_info(member.name, member.original.path), "w") as target,
            ):
                shutil.copyfileobj(source, target, COPY_BYTES)
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


def _info(name: str, path: Path | None = None) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, UNDATED)
    info.compress_type = zipfile.ZIP_DEFLATED
    if path is not None:
        # Only a member above 2 GiB gets the extension for large files, which trace_processor 55 does not read.
        info.file_size = path.stat().st_size
    return info


def _member(original: Original) -> Member:
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
    name = f"rank-{original.rank:05}/{original.path.name}"
    return Member(original, name, origin_ns, drift_ns, slices, flows)


def manifest_text(members: Sequence[Member]) -> str:
    """Return the manifest. The reference is the file whose time 0 is first, so that no offset is negative."""
    reference = min(members, key=lambda member: member.origin_ns)
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
