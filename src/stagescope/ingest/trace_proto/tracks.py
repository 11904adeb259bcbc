"""Tracks of a trace: what a TrackDescriptor states of the row that slices are drawn on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.protobuf_fields import as_signed
from stagescope.ingest.trace_proto.schema import (
    CounterType,
    Descriptor,
    Process,
    Thread,
    numbers_of,
    parts_of,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.ingest.protobuf_fields import Buffer


class Track(NamedTuple):
    """One track; `process` and `thread` are the ids that the operating system, or the writer, gave them."""

    uuid: int
    name: str = ""
    parent: int = 0
    order: int = 0
    process: int | None = None
    thread: int | None = None
    process_name: str = ""
    unit: str | None = None
    """The unit of a counter, empty if it states none; None for a track that is no counter."""


def track_of(data: Buffer) -> Track:
    """Return the track of a TrackDescriptor. Raises DamagedFieldError."""
    numbers, parts = numbers_of(data), parts_of(data)
    name = text_of(parts.get(Descriptor.NAME) or parts.get(Descriptor.STATIC_NAME))
    process = thread = None
    process_name = ""
    if Descriptor.PROCESS in parts:
        process = as_signed(numbers_of(parts[Descriptor.PROCESS]).get(Process.PID, 0))
        process_name = text_of(parts_of(parts[Descriptor.PROCESS]).get(Process.NAME))
    if Descriptor.THREAD in parts:
        ids = numbers_of(parts[Descriptor.THREAD])
        process, thread = as_signed(ids.get(Thread.PID, 0)), as_signed(ids.get(Thread.TID, 0))
        name = name or text_of(parts_of(parts[Descriptor.THREAD]).get(Thread.NAME))
    return Track(
        numbers.get(Descriptor.UUID, 0),
        name,
        numbers.get(Descriptor.PARENT_UUID, 0),
        as_signed(numbers.get(Descriptor.ORDER, 0)),
        process,
        thread,
        process_name,
        _unit(parts[Descriptor.COUNTER]) if Descriptor.COUNTER in parts else None,
    )


def _unit(counter: Buffer) -> str:
    """Return the unit of a CounterDescriptor."""
    if numbers_of(counter).get(CounterType.UNIT) == CounterType.SIZE_BYTES:
        return "B"
    return text_of(parts_of(counter).get(CounterType.UNIT_NAME))


MOST_LEVELS = 64
"""Tracks nest less than 10 levels. In a chain of 100,000, every track would have to pass all others."""


def ancestors(track: Track, tracks: Mapping[int, Track]) -> list[Track]:
    """Return a track and those above it, the innermost first, MOST_LEVELS at most.

    A circle of parents ends where it closes.
    """
    found, seen = [track], {track.uuid}
    while (above := tracks.get(found[-1].parent)) is not None and above.uuid not in seen:
        if len(found) == MOST_LEVELS:
            break
        found.append(above)
        seen.add(above.uuid)
    return found


def process_of(track: Track, tracks: Mapping[int, Track]) -> Track | None:
    """Return the innermost track above, or the track itself, that states its process."""
    return next((one for one in ancestors(track, tracks) if one.process is not None), None)
