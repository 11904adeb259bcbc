"""Decode the devices of a profile of JAX or XLA.

Source: tsl/profiler/protobuf/xplane.proto. A file is an XSpace of planes, one per device and some of the host. A line
of a device is a stream, whose events are kernels: their names, and the names and texts of their stats, are numbers
of tables of the plane. Times are the start of the line in ns and an offset in ps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.protobuf_fields import VARINT, DamagedFieldError, as_signed, message_fields
from stagescope.ingest.streams import open_stream
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stagescope.ingest.protobuf_fields import Buffer

PLANES, HOSTS = 1, 4
NAME, LINES, EVENT_NAMES, STAT_NAMES, PLANE_STATS = 2, 3, 4, 5, 6
"""Fields of XPlane; a map has the number of an entry in field 1 and the entry in field 2."""

LINE_ID, LINE_NAME, LINE_START, LINE_EVENTS = 1, 2, 3, 4
EVENT_NAME, EVENT_OFFSET, EVENT_DURATION, EVENT_STATS = 1, 2, 3, 4
METADATA_NAME, METADATA_STATS = 2, 5
STAT_NAME, STAT_NUMBERS, STAT_TEXT, STAT_REFERENCE = 1, (3, 4), 5, 7
SCOPES = ("name", "tf_op")
"""The stats with the scopes of an operation, `jit(step)/F0.3/dot_general`: on a GPU, whose tf_op is `XlaModule:`, and
on a TPU."""

START = "profile_start_time"
ENVIRONMENT, DEVICE = "Task Environment", "/device:"
OPERATIONS = "XLA Ops"
"""The line of a TPU with the operations; its other lines repeat their time."""

PS_PER_NS = 1000


class Kernel(NamedTuple):
    """One operation on a device."""

    name: str
    scope: str
    stream: int
    start_ns: int
    end_ns: int


class Profile(NamedTuple):
    """A file: its host, the wall time at its zero, and the kernels of each device; `damage` is where it ends early."""

    host: str | None
    epoch_ns: int | None
    devices: dict[str, list[Kernel]]
    damage: str | None


def read_profile(path: Path) -> Profile:
    """Return the content of a file; raises InputError for one without a plane."""
    with open_stream(path) as stream:
        data = memoryview(stream.read())
        damage = stream.damage
    host, epoch_ns = None, None
    planes: list[_Plane] = []
    devices: dict[str, list[Kernel]] = {}
    try:
        for number, _, value in message_fields(data):
            if isinstance(value, int):
                continue
            if number == HOSTS:
                host = host or _text(value)
            elif number == PLANES:
                planes.append(_Plane(value))
        epoch_ns = next((found for plane in planes if (found := plane.epoch_ns())), None)
    except DamagedFieldError as reason:
        damage = damage or f"the profile is damaged: {reason}"
    if not planes:
        raise InputError.damaged(path, f"not an XLA profile: {damage or 'it has no plane'}")
    for plane in planes:
        if plane.name in devices:
            damage = damage or f"several planes are named {plane.name}: the last one is used"
        if plane.name.startswith(DEVICE):
            devices[plane.name], fault = _until_damage(plane)
            damage = damage or fault
    return Profile(host, epoch_ns, devices, damage)


def _until_damage(plane: _Plane) -> tuple[list[Kernel], str | None]:
    """Return the kernels of a plane up to the first damage, and that."""
    found: list[Kernel] = []
    try:
        found.extend(plane.kernels())
    except DamagedFieldError as reason:
        return found, f"{plane.name} is damaged: {reason}"
    return found, None


class _Plane:
    """One plane, with the tables of its names."""

    def __init__(self, data: Buffer) -> None:
        self.name = ""
        self._lines: list[Buffer] = []
        self._stats: list[Buffer] = []
        events: dict[int, Buffer] = {}
        self._stat_names: dict[int, str] = {}
        for number, _, value in message_fields(data):
            if isinstance(value, int):
                continue
            if number == NAME:
                self.name = _text(value)
            elif number == LINES:
                self._lines.append(value)
            elif number == PLANE_STATS:
                self._stats.append(value)
            elif number == EVENT_NAMES:
                events.update(_entry(value))
            elif number == STAT_NAMES:
                found = _entry(value).items()
                self._stat_names |= {key: _field_text(entry, METADATA_NAME) for key, entry in found}
        self._events = {key: (_field_text(entry, METADATA_NAME), self._scope(entry, METADATA_STATS))
                        for key, entry in events.items()}  # fmt: skip

    def epoch_ns(self) -> int | None:
        """Return the wall time at which the profile began, if this plane states it."""
        if self.name == ENVIRONMENT:
            for stat in self._stats:
                name, number, _ = self._stat(stat)
                if name == START and number is not None and number > 0:
                    return number
        return None

    def kernels(self) -> Iterator[Kernel]:
        """Yield the operations of a device."""
        lines = [(_field_text(line, LINE_NAME), line) for line in self._lines]
        operations = [line for name, line in lines if name == OPERATIONS]
        for line in operations or [line for _, line in lines]:
            yield from self._of_line(line)

    def _of_line(self, line: Buffer) -> Iterator[Kernel]:
        numbers, events = {LINE_ID: 0, LINE_START: 0}, []
        for number, wire_type, value in message_fields(line):
            if number in numbers and wire_type == VARINT and isinstance(value, int):
                numbers[number] = as_signed(value)
            elif number == LINE_EVENTS and not isinstance(value, int):
                events.append(value)
        for event in events:
            times = {EVENT_NAME: 0, EVENT_OFFSET: 0, EVENT_DURATION: 0}
            for number, wire_type, value in message_fields(event):
                if number in times and wire_type == VARINT and isinstance(value, int):
                    times[number] = as_signed(value)
            name, scope = self._events.get(times[EVENT_NAME], ("", ""))
            start = numbers[LINE_START] + times[EVENT_OFFSET] // PS_PER_NS
            end = numbers[LINE_START] + (times[EVENT_OFFSET] + times[EVENT_DURATION]) // PS_PER_NS
            yield Kernel(name, self._scope(event, EVENT_STATS) or scope, numbers[LINE_ID], start, end)

    def _scope(self, data: Buffer, field: int) -> str:
        """Return the scopes of an event or of its metadata; empty if it has none."""
        for number, _, value in message_fields(data):
            if number == field and not isinstance(value, int):
                name, _, text = self._stat(value)
                if name in SCOPES and "/" in text:
                    return text
        return ""

    def _stat(self, data: Buffer) -> tuple[str, int | None, str]:
        """Return name, number and text of a stat."""
        name, whole, text = "", None, ""
        for number, wire_type, value in message_fields(data):
            if isinstance(value, int) and wire_type == VARINT:
                if number == STAT_NAME:
                    name = self._stat_names.get(value, "")
                elif number in STAT_NUMBERS:
                    whole = as_signed(value)
                elif number == STAT_REFERENCE:
                    text = self._stat_names.get(value, "")
            elif number == STAT_TEXT and not isinstance(value, int):
                text = _text(value)
        return name, whole, text


def _entry(data: Buffer) -> dict[int, Buffer]:
    """Return an entry of a map by its number."""
    key, entry = 0, None
    for number, _, value in message_fields(data):
        if number == 1 and isinstance(value, int):
            key = as_signed(value)
        elif number == 2 and not isinstance(value, int):  # noqa: PLR2004 - the value of a map
            entry = value
    return {} if entry is None else {key: entry}


def _field_text(data: Buffer, field: int) -> str:
    for number, _, value in message_fields(data):
        if number == field and not isinstance(value, int):
            return _text(value)
    return ""


def _text(data: Buffer) -> str:
    return bytes(data).decode("utf-8", "replace")
