r"""The recording file (``*.sscope``), one per process: frames that survive any crash.

A file is a row of frames and nothing else. Each frame is a 20-byte head and a payload, little-endian:

    offset  size  field
    0       4     magic, b"\xabSSC"
    4       4     sequence number, 0 for the first frame of the file, then one more per frame
    8       4     payload length in bytes, at most 4 MiB
    12      1     frame type
    13      3     zero
    16      4     CRC32 of bytes 4-15 and of the payload

A reader that meets damage looks for the next head whose CRC is right; the sequence numbers tell how many
frames are gone. A file without an END frame belongs to a process that did not end by itself. docs/formats.md
describes the payloads and the history of `FORMAT_VERSION`.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT_VERSION = 1
SUFFIX = ".sscope"
MAGIC = b"\xabSSC"
MAX_PAYLOAD_BYTES = 4 * 2**20

HEAD = struct.Struct("<4sIIB3xI")
_GUARDED = slice(4, 16)

HEADER, NAMES, SPANS, CLOCK, DROPS, END, DEVICE_CLOCK = range(1, 8)
"""Frame types. HEADER, NAMES, DROPS and END carry JSON; SPANS, CLOCK and DEVICE_CLOCK fixed-width records."""

SPAN = struct.Struct("<qqqqqiiiiiIhHBB2x")
SPAN_FIELDS: tuple[tuple[str, str], ...] = (
    ("start_ns", "<i8"),
    ("end_ns", "<i8"),
    ("wait_start_ns", "<i8"),
    ("wait_end_ns", "<i8"),
    ("bytes", "<i8"),
    ("step", "<i4"),
    ("stage", "<i4"),
    ("microbatch", "<i4"),
    ("peer", "<i4"),
    ("pair", "<i4"),
    ("name", "<u4"),
    ("chunk", "<i2"),
    ("thread", "<u2"),
    ("kind", "u1"),
    ("lane", "u1"),
    ("reserved", "<u2"),
)
"""Fields of one SPANS record in order, spelled as numpy dtypes; `NONE` stands for no value."""

NONE = -1

ANCHOR = struct.Struct("<qqq")
ANCHOR_FIELDS: tuple[tuple[str, str], ...] = (
    ("monotonic_ns", "<i8"),
    ("realtime_ns", "<i8"),
    ("width_ns", "<i8"),
)
"""Fields of one CLOCK record: the wall clock read between two monotonic reads `width_ns` apart."""

DEVICE_ANCHOR = struct.Struct("<qqqq")
DEVICE_ANCHOR_FIELDS: tuple[tuple[str, str], ...] = (
    ("device_ns", "<i8"),
    ("monotonic_ns", "<i8"),
    ("width_ns", "<i8"),
    ("error_ns", "<i8"),
)
"""Fields of one DEVICE_CLOCK record: an anchor of the device's clock, and the error of the line that leads to it."""


class Frame(NamedTuple):
    """One intact frame: its sequence number, type and payload, and where it stands in the file."""

    sequence: int
    type: int
    payload: memoryview
    offset: int


class Gap(NamedTuple):
    """A stretch of the file that holds no intact frame: damage, or a frame cut short at the end."""

    offset: int
    size_bytes: int
    truncated: bool


def encode_frame(sequence: int, frame_type: int, payload: bytes) -> bytes:
    """Return one frame as bytes."""
    head = HEAD.pack(MAGIC, sequence & 0xFFFFFFFF, len(payload), frame_type, 0)
    return HEAD.pack(
        MAGIC,
        sequence & 0xFFFFFFFF,
        len(payload),
        frame_type,
        zlib.crc32(payload, zlib.crc32(head[_GUARDED])),
    ) + payload  # fmt: skip


def scan_frames(data: bytes) -> Iterator[Frame | Gap]:
    """Yield the intact frames of a recording in file order, and a Gap for every stretch between them.

    Never raises: any sequence of bytes is a row of frames and gaps. A gap that reaches the end of the file
    and begins like a frame is `truncated`: what a process leaves behind that was killed while it wrote.
    """
    view = memoryview(data)
    position = 0
    while position < len(view):
        frame = _frame_at(view, position)
        if frame is None:
            following = _next_frame(data, view, position + 1)
            yield Gap(
                position, following - position, following == len(view) and _may_be_truncated(view, position)
            )
            position = following
            continue
        yield frame
        position += HEAD.size + len(frame.payload)


def _frame_at(view: memoryview, position: int) -> Frame | None:
    """Return the frame that begins at `position` if it is whole and its CRC is right."""
    head = view[position : position + HEAD.size]
    if len(head) < HEAD.size or head[:4] != MAGIC:
        return None
    _, sequence, length, frame_type, crc = HEAD.unpack(head)
    payload = view[position + HEAD.size : position + HEAD.size + length]
    if length > MAX_PAYLOAD_BYTES or len(payload) < length:
        return None
    if zlib.crc32(payload, zlib.crc32(head[_GUARDED])) != crc:
        return None
    return Frame(sequence, frame_type, payload, position)


def _next_frame(data: bytes, view: memoryview, position: int) -> int:
    """Return the offset of the next intact frame from `position` on, or the length of the file."""
    while (position := data.find(MAGIC, position)) >= 0:
        if _frame_at(view, position) is not None:
            return position
        position += 1
    return len(view)


def _may_be_truncated(view: memoryview, position: int) -> bool:
    """Tell whether the rest of the file reads like the beginning of one frame that was cut short."""
    rest = view[position:]
    if len(rest) < HEAD.size:
        return bytes(rest[:4]) == MAGIC[: len(rest)]
    _, _, length, _, _ = HEAD.unpack(rest[: HEAD.size])
    return bytes(rest[:4]) == MAGIC and len(rest) < HEAD.size + length <= HEAD.size + MAX_PAYLOAD_BYTES
