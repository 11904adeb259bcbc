"""The numbers of the fields of a Perfetto trace that are read, by message.

Source: protos/perfetto/trace/perfetto_trace.proto in github.com/google/perfetto. Other fields are skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.protobuf_fields import LENGTH, message_fields

if TYPE_CHECKING:
    from stagescope.ingest.protobuf_fields import Buffer, Value

TRACE_PACKET = 1


class Packet:
    """TracePacket."""

    CLOCK_SNAPSHOT, TIMESTAMP, SEQUENCE_ID, TRACK_EVENT, INTERNED_DATA, SEQUENCE_FLAGS = 6, 8, 10, 11, 12, 13
    STATE_CLEARED, PREVIOUS_DROPPED, THREAD_DESCRIPTOR, COMPRESSED, GPU_STAGE = 41, 42, 44, 50, 53
    TIMESTAMP_CLOCK, DEFAULTS, TRACK_DESCRIPTOR = 58, 59, 60


CLEARED_FLAG, NEEDS_STATE_FLAG = 1, 2
"""Bits of Packet.SEQUENCE_FLAGS."""


class Event:
    """TrackEvent, and TrackEventDefaults, which shares the number of the track."""

    CATEGORY_IIDS, ANNOTATIONS, LEGACY, TYPE, NAME_IID, TRACK_UUID = 3, 4, 6, 9, 10, 11
    CATEGORIES, NAME, COUNTER_VALUE = 22, 23, 30
    DOUBLE_COUNTER_VALUE, FLOW_IDS, ENDING_FLOW_IDS = 44, 47, 48


SLICE_BEGIN, SLICE_END, INSTANT, COUNTER = 1, 2, 3, 4
"""Values of Event.TYPE."""


class Legacy:
    """TrackEvent.LegacyEvent: how Chrome wrote events before slices had a type of their own."""

    NAME_IID, PHASE, DURATION_US = 1, 2, 3


class Annotation:
    """DebugAnnotation."""

    NAME_IID, BOOL, UINT, INT, DOUBLE, STRING, POINTER, NAME = 1, 2, 3, 4, 5, 6, 7, 10
    JSON, ENTRIES, ITEMS, STRING_IID = 9, 11, 12, 17


class Interned:
    """InternedData: lists of messages of an id and a text."""

    CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, GPU_SPECIFICATIONS, STRING_VALUES = 1, 2, 3, 24, 29
    TABLES = (CATEGORIES, EVENT_NAMES, ANNOTATION_NAMES, GPU_SPECIFICATIONS, STRING_VALUES)
    IID, TEXT = 1, 2


class Descriptor:
    """TrackDescriptor."""

    UUID, NAME, PROCESS, THREAD, PARENT_UUID, COUNTER, STATIC_NAME, ORDER, DESCRIPTION = (
        1,
        2,
        3,
        4,
        5,
        8,
        10,
        12,
        14,
    )


class Process:
    """ProcessDescriptor."""

    PID, NAME = 1, 6


class Thread:
    """ThreadDescriptor."""

    PID, TID, NAME = 1, 2, 5


class CounterType:
    """CounterDescriptor, and a value of its unit."""

    UNIT, UNIT_NAME = 3, 6
    SIZE_BYTES = 3


class Clocks:
    """ClockSnapshot, and its Clock."""

    CLOCK = 1
    ID, TIMESTAMP, IS_INCREMENTAL, UNIT_NS = 1, 2, 3, 4


class GpuStage:
    """GpuRenderStageEvent, in which torch writes kernels."""

    EVENT_ID, DURATION, EXTRA, GPU_ID, QUEUE_IID, STAGE_IID, NAME, NAME_IID = 1, 2, 6, 11, 13, 14, 17, 20
    EXTRA_NAME, EXTRA_VALUE = 1, 2


REALTIME, BOOTTIME = 1, 6
FIRST_OF_SEQUENCE, LAST_OF_SEQUENCE = 64, 127
"""Ids of clocks: the wall clock, the default, and the range that every sequence defines for itself."""


def numbers_of(data: Buffer) -> dict[int, int]:
    """Return the last value of every field of a message that holds a number. Raises DamagedFieldError."""
    return {number: value for number, _, value in message_fields(data) if isinstance(value, int)}


def parts_of(data: Buffer) -> dict[int, Buffer]:
    """Return the last value of every field of a message that holds text or a message. Raises DamagedFieldError."""
    found = {number: value for number, kind, value in message_fields(data) if kind == LENGTH}
    return {number: value for number, value in found.items() if not isinstance(value, int)}


def text_of(value: Value | None) -> str:
    """Return a text; bytes that are not UTF-8 are replaced, and a number is an empty text."""
    return "" if value is None or isinstance(value, int) else bytes(value).decode("utf-8", "replace")
