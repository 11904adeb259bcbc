r"""The recording file (``*.sscope``): a sequence of frames, written by one process, that survives a crash.

A file contains nothing but frames. Each frame is a 20-byte head and a payload, little-endian:

    offset  size  field
    0       4     magic, b"\xabSSC"
    4       4     sequence number: 0 for the first frame of the file, plus one per frame
    8       4     payload length in bytes, at most 4 MiB
    12      1     frame type
    13      3     zero
    16      4     CRC32 of bytes 4-15 and of the payload

After damage, a reader searches for the next head with a valid CRC; the sequence numbers show how many frames are
missing. A file without an END frame was left by a process that did not end regularly. docs/formats.md describes the
payloads and the history of `FORMAT_VERSION`.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

FORMAT_VERSION = 2
SUFFIX = ".sscope"
KERNEL_FOLDER = "kernels-"
"""Directories beside recordings with the kernels of some steps, which are read as a run of their own."""
MAGIC = b"\xabSSC"
MAX_PAYLOAD_BYTES = 4 * 2**20

HEAD = struct.Struct("<4sIIB3xI")
_GUARDED = slice(4, 16)

HEADER, NAMES, SPANS, CLOCK, DROPS, END, DEVICE_CLOCK, RAW_CLOCK, COUNTERS, STATE = range(1, 11)
FRAME_NAMES = (
    "HEADER", "NAMES", "SPANS", "CLOCK", "DROPS", "END", "DEVICE_CLOCK", "RAW_CLOCK", "COUNTERS", "STATE",
)  # fmt: skip
"""The names of the types of frames, from 1 on."""
"""Frame types. HEADER, NAMES, DROPS, END and STATE contain JSON, the others fixed-size records."""

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
"""Fields of one SPANS record in order, as numpy dtypes. `NONE` means that the value is unknown."""

NONE = -1

ANCHOR = struct.Struct("<qqq")
ANCHOR_FIELDS: tuple[tuple[str, str], ...] = (
    ("monotonic_ns", "<i8"),
    ("realtime_ns", "<i8"),
    ("width_ns", "<i8"),
)
"""Fields of one CLOCK record: the wall clock, read between two readings of the monotonic clock `width_ns` apart."""

DEVICE_ANCHOR = struct.Struct("<qqqq")
DEVICE_ANCHOR_FIELDS: tuple[tuple[str, str], ...] = (
    ("device_ns", "<i8"),
    ("monotonic_ns", "<i8"),
    ("width_ns", "<i8"),
    ("error_ns", "<i8"),
)
"""Fields of one DEVICE_CLOCK record: an anchor of the device's clock, and the error of the line that leads to it."""

RAW_ANCHOR = struct.Struct("<qqq")
RAW_ANCHOR_FIELDS: tuple[tuple[str, str], ...] = (
    ("monotonic_ns", "<i8"),
    ("raw_ns", "<i8"),
    ("width_ns", "<i8"),
)
"""Fields of one RAW_CLOCK record: CLOCK_MONOTONIC_RAW, read between two readings of the monotonic clock."""

COUNTER = struct.Struct("<qdiiiI")
COUNTER_FIELDS: tuple[tuple[str, str], ...] = (
    ("time_ns", "<i8"),
    ("value", "<f8"),
    ("step", "<i4"),
    ("stage", "<i4"),
    ("microbatch", "<i4"),
    ("name", "<u4"),
)
"""Fields of one COUNTERS record: the value of a counter at a moment, and the action it belongs to, if any."""

RECORDS: dict[int, tuple[str, int]] = {
    SPANS: ("spans", SPAN.size),
    CLOCK: ("clock", ANCHOR.size),
    DEVICE_CLOCK: ("device_clock", DEVICE_ANCHOR.size),
    RAW_CLOCK: ("raw_clock", RAW_ANCHOR.size),
    COUNTERS: ("counters", COUNTER.size),
}
"""The frame types that contain records: the name of each in `file_records`, and the size of a record in bytes."""


class Frame(NamedTuple):
    """One intact frame: its sequence number, type, payload, file offset and checksum."""

    sequence: int
    type: int
    payload: memoryview
    offset: int
    crc: int


class Gap(NamedTuple):
    """A part of the file without an intact frame: damage, or a frame that was cut off at the end."""

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
    """Yield the intact frames of a recording in file order, and a Gap for each damaged part between them.

    Never raises, for any input. A gap at the end of the file that begins like a frame has `truncated` set: a process
    that is killed while writing leaves such a gap.
    """
    return scan_blocks((data,))


def scan_blocks(blocks: Iterable[bytes]) -> Iterator[Frame | Gap]:
    """Yield what `scan_frames` yields for a file that is read in blocks, none of which is empty.

    In memory are two blocks, an unfinished frame, and the blocks that contain payloads of frames that the caller keeps.
    """
    following = iter(blocks)
    data, begin = next(following, b""), 0
    gap: Gap | None = None
    while data:
        block = next(following, b"")
        position, gap = yield from _scan_block(data, begin, gap, is_last=not block)
        begin += position
        data = data[position:] + block if block else b""
    if gap is not None:
        yield gap._replace(size_bytes=begin - gap.offset)


def _scan_block(
    data: bytes, begin: int, gap: Gap | None, *, is_last: bool
) -> Generator[Frame | Gap, None, tuple[int, Gap | None]]:
    """Yield the frames and ended gaps of a block at the offset `begin`; return where it goes on in the next block.

    Also returns the gap that has no end yet.
    """
    view, position = memoryview(data), 0
    while position < len(view):
        frame = _frame_at(view, position, begin)
        if frame is not None:
            if gap is not None:
                yield Gap(gap.offset, frame.offset - gap.offset, truncated=False)
            gap = None
            yield frame
            position += HEAD.size + len(frame.payload)
            continue
        is_begun = _may_be_truncated(view, position)
        if is_begun and not is_last:
            break
        gap = gap or Gap(begin + position, 0, is_begun)
        position = _next_magic(data, position + 1)
    return position, gap


def _frame_at(view: memoryview, position: int, begin: int) -> Frame | None:
    """Return the frame at `position` if it is complete and its CRC matches; `begin` is the offset of `view`."""
    head = view[position : position + HEAD.size]
    if len(head) < HEAD.size or head[:4] != MAGIC:
        return None
    _, sequence, length, frame_type, crc = HEAD.unpack(head)
    payload = view[position + HEAD.size : position + HEAD.size + length]
    if length > MAX_PAYLOAD_BYTES or len(payload) < length:
        return None
    if zlib.crc32(payload, zlib.crc32(head[_GUARDED])) != crc:
        return None
    return Frame(sequence, frame_type, payload, begin + position, crc)


def _next_magic(data: bytes, position: int) -> int:
    """Return where a frame may begin from `position` on: also in the last bytes of `data`, or at its end."""
    # The magic may also occur inside a payload, so each place is verified by its CRC.
    found = data.find(MAGIC, position)
    if found >= 0:
        return found
    ends = (
        at
        for at in range(max(position, len(data) - len(MAGIC) + 1), len(data))
        if MAGIC.startswith(data[at:])
    )
    return next(ends, len(data))


def _may_be_truncated(view: memoryview, position: int) -> bool:
    """Return whether the rest of the file looks like the beginning of a single frame."""
    rest = view[position : position + HEAD.size]
    if len(rest) < HEAD.size:
        return bytes(rest[:4]) == MAGIC[: len(rest)]
    if rest[:4] != MAGIC:
        return False
    length: int = HEAD.unpack(rest)[2]
    return len(view) - position < HEAD.size + length <= HEAD.size + MAX_PAYLOAD_BYTES
