"""The state of the packet sequences of a trace: interned texts, defaults and clocks.

Each writer of a trace has a sequence, whose packets refer to texts and clocks that earlier packets of the sequence have
defined. Source: perfetto.dev/docs/reference/synthetic-track-event and docs/concepts/clock-sync.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagescope.ingest.protobuf_fields import LENGTH, message_fields
from stagescope.ingest.trace_proto.schema import (
    BOOTTIME,
    FIRST_OF_SEQUENCE,
    LAST_OF_SEQUENCE,
    REALTIME,
    Clocks,
    Event,
    Interned,
    Packet,
    numbers_of,
    parts_of,
    text_of,
)

if TYPE_CHECKING:
    from stagescope.ingest.protobuf_fields import Buffer

DEFAULT_EVENT = 11
"""TracePacketDefaults.track_event_defaults."""


@dataclass
class Clock:
    """A clock that a sequence defines: `value` on it is `base_ns` on the clock `base`; it may count differences."""

    value: int
    base: int
    base_ns: int
    unit_ns: int
    is_incremental: bool


@dataclass
class Sequence:
    """The state of one sequence of packets."""

    has_state: bool = False
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    """Interned texts by the field of InternedData and their id."""
    default_clock: int | None = None
    default_track: int = 0
    clocks: dict[int, Clock] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget what packets defined, except for clocks, as a sequence states it at its beginning."""
        self.has_state, self.texts = True, {}
        self.default_clock, self.default_track = None, 0

    def intern(self, data: Buffer) -> None:
        """Add the texts of an InternedData. Raises DamagedFieldError."""
        for table, kind, entry in message_fields(data):
            if table in Interned.TABLES and kind == LENGTH and not isinstance(entry, int):
                number, text = numbers_of(entry), parts_of(entry)
                if Interned.IID in number:
                    self.texts[table, number[Interned.IID]] = text_of(text.get(Interned.TEXT))

    def set_defaults(self, data: Buffer) -> None:
        """Use the defaults of a TracePacketDefaults from now on. Raises DamagedFieldError."""
        self.default_clock = numbers_of(data).get(Packet.TIMESTAMP_CLOCK)
        event = parts_of(data).get(DEFAULT_EVENT)
        self.default_track = numbers_of(event).get(Event.TRACK_UUID, 0) if event is not None else 0


class ClockTable:
    """The relation of the clocks of a trace: constant offsets between the system's clocks, from the first snapshot."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        """What to add to a system clock to get the wall clock, in nanoseconds."""

    def add_snapshot(self, data: Buffer, sequence: Sequence) -> None:
        """Add the clocks of a ClockSnapshot. Raises DamagedFieldError."""
        found: list[tuple[int, int, int, bool]] = []
        for number, kind, part in message_fields(data):
            if number == Clocks.CLOCK and kind == LENGTH and not isinstance(part, int):
                stated = numbers_of(part)
                unit_ns = stated.get(Clocks.UNIT_NS) or 1
                incremental = bool(stated.get(Clocks.IS_INCREMENTAL))
                found.append(
                    (stated.get(Clocks.ID, 0), stated.get(Clocks.TIMESTAMP, 0), unit_ns, incremental)
                )
        system = {clock: at * unit_ns for clock, at, unit_ns, _ in found if clock < FIRST_OF_SEQUENCE}
        if REALTIME in system:
            for clock, at_ns in system.items():
                self.offsets.setdefault(clock, system[REALTIME] - at_ns)
        base = BOOTTIME if BOOTTIME in system else next(iter(system), None)
        if base is None:
            return
        for clock, at, unit_ns, incremental in found:
            if FIRST_OF_SEQUENCE <= clock <= LAST_OF_SEQUENCE:
                sequence.clocks[clock] = Clock(at, base, system[base], unit_ns, incremental)

    def resolve(self, timestamp: int, clock_id: int, sequence: Sequence) -> tuple[int, int] | None:
        """Return a timestamp as nanoseconds on a system clock, and that clock; None if its clock is unknown."""
        if not FIRST_OF_SEQUENCE <= clock_id <= LAST_OF_SEQUENCE:
            return timestamp, clock_id
        clock = sequence.clocks.get(clock_id)
        if clock is None:
            return None
        if clock.is_incremental:
            clock.base_ns += timestamp * clock.unit_ns
            return clock.base_ns, clock.base
        return clock.base_ns + (timestamp - clock.value) * clock.unit_ns, clock.base
