"""Mutators of the frames of a recording, with checksums that fit."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from fuzz.json_mutations import CHANGES
from fuzz.mutations import Mutator, of_bytes
from stagescope.record import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

HEAD = struct.Struct("<4sIIB3xI")
Frame = tuple[int, int, bytes]
"""Sequence number, type and payload."""

LAYOUTS = {
    fmt.SPANS: fmt.SPAN,
    fmt.CLOCK: fmt.ANCHOR,
    fmt.DEVICE_CLOCK: fmt.DEVICE_ANCHOR,
    fmt.RAW_CLOCK: fmt.RAW_ANCHOR,
    fmt.COUNTERS: fmt.COUNTER,
}
CHANCE_OF_ALL_RECORDS = 0.2

ODD_INTEGERS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 2**63, 2**64 - 1)


def frames_of(data: bytes) -> list[Frame]:
    """Return the frames of a valid recording; those before the first damage of any other."""
    found, place = [], 0
    while place + HEAD.size <= len(data):
        _, sequence, length, kind, _ = HEAD.unpack_from(data, place)
        place += HEAD.size
        if place + length > len(data):
            break
        found.append((sequence, kind, data[place : place + length]))
        place += length
    return found


def encoded(frames: list[Frame]) -> bytes:
    """Return a recording of frames."""
    return b"".join(fmt.encode_frame(*frame) for frame in frames)


def _of_frames(change: Callable[[list[Frame], Random], list[Frame]], *, is_revealed: bool) -> Mutator:
    def apply(data: bytes, chance: Random) -> bytes:
        frames = frames_of(data)
        return encoded(change(frames, chance)) if frames else data

    apply.__name__ = change.__name__
    return of_bytes(apply, is_revealed=is_revealed)


def _payload(frames: list[Frame], place: int, payload: bytes) -> list[Frame]:
    sequence, kind, _ = frames[place]
    return [*frames[:place], (sequence, kind, payload), *frames[place + 1 :]]


def delete_frame(frames: list[Frame], chance: Random) -> list[Frame]:
    """Delete a frame, which leaves a gap in the sequence numbers."""
    place = chance.randrange(len(frames))
    return frames[:place] + frames[place + 1 :]


def repeat_frame(frames: list[Frame], chance: Random) -> list[Frame]:
    """Repeat a frame with its sequence number."""
    place = chance.randrange(len(frames))
    return frames[: place + 1] + frames[place:]


def swap_frames(frames: list[Frame], chance: Random) -> list[Frame]:
    """Exchange two frames: nothing is lost, because the order of frames has no meaning."""
    a, b = chance.randrange(len(frames)), chance.randrange(len(frames))
    changed = list(frames)
    changed[a], changed[b] = changed[b], changed[a]
    return changed


def repeat_spans_renumbered(frames: list[Frame], chance: Random) -> list[Frame]:
    """Repeat a frame of spans as if it had been written twice: only the count of END reveals it."""
    spans = [place for place, frame in enumerate(frames) if frame[1] == fmt.SPANS]
    if not spans:
        return frames
    place = chance.choice(spans)
    repeated = frames[: place + 1] + frames[place:]
    return [(number, kind, payload) for number, (_, kind, payload) in enumerate(repeated)]


def other_sequence(frames: list[Frame], chance: Random) -> list[Frame]:
    """Change a sequence number."""
    place = chance.randrange(len(frames))
    _, kind, payload = frames[place]
    return [*frames[:place], (chance.choice([0, 2**32 - 1, place + 5]), kind, payload), *frames[place + 1 :]]


def other_kind(frames: list[Frame], chance: Random) -> list[Frame]:
    """Change the type of a frame."""
    place = chance.randrange(len(frames))
    sequence, _, payload = frames[place]
    return [
        *frames[:place],
        (sequence, chance.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 77, 255]), payload),
        *frames[place + 1 :],
    ]


def other_payload(frames: list[Frame], chance: Random) -> list[Frame]:
    """Truncate or replace a payload, with a checksum that fits."""
    place = chance.randrange(len(frames))
    payload = frames[place][2]
    cut = payload[: chance.randrange(len(payload) + 1)]
    new = chance.choice(
        [b"", cut, cut, payload + b"\0", chance.randbytes(len(payload)), b"null", b"[]", b"\xff"]
    )
    return _payload(frames, place, new)


def odd_json(frames: list[Frame], chance: Random) -> list[Frame]:
    """Change a value in a payload of JSON."""
    objects = [place for place, frame in enumerate(frames) if frame[2].startswith(b"{")]
    if not objects:
        return frames
    place = chance.choice(objects)
    try:
        value = chance.choice(CHANGES)(json.loads(frames[place][2]), chance)
    except ValueError:
        return frames
    return _payload(frames, place, json.dumps(value).encode())


def odd_integer(frames: list[Frame], chance: Random) -> list[Frame]:
    """Overwrite eight or four bytes of a payload of records with an integer that may not fit."""
    records = [place for place, frame in enumerate(frames) if len(frame[2]) >= 8 and frame[2][:1] != b"{"]
    if not records:
        return frames
    place = chance.choice(records)
    payload = bytearray(frames[place][2])
    width = chance.choice([4, 8])
    at = chance.randrange(0, len(payload) - width + 1, 4)
    value = chance.choice(ODD_INTEGERS) % 2 ** (8 * width)
    payload[at : at + width] = value.to_bytes(width, "little")
    return _payload(frames, place, bytes(payload))


def odd_field(frames: list[Frame], chance: Random) -> list[Frame]:
    """Set a field of one record, or of all records of a frame, to an integer that may be impossible."""
    records = [place for place, frame in enumerate(frames) if frame[1] in LAYOUTS and frame[2]]
    if not records:
        return frames
    place = chance.choice(records)
    layout = LAYOUTS[frames[place][1]]
    if len(frames[place][2]) % layout.size:
        return frames
    rows = list(layout.iter_unpack(frames[place][2]))
    column, value = chance.randrange(len(rows[0])), chance.choice(ODD_INTEGERS)
    chosen = range(len(rows)) if chance.random() < CHANCE_OF_ALL_RECORDS else [chance.randrange(len(rows))]
    for row in chosen:
        rows[row] = _with_field(layout, rows[row], column, value)
    return _payload(frames, place, b"".join(layout.pack(*row) for row in rows))


def _with_field(layout: struct.Struct, row: tuple[float, ...], column: int, value: int) -> tuple[float, ...]:
    """Return a record with one field replaced by the part of a value that fits it."""
    for fitting in (value, value & 0x7FFFFFFF, value & 0x7FFF, value & 0x7F):
        changed = (*row[:column], type(row[column])(fitting), *row[column + 1 :])
        try:
            layout.pack(*changed)
        except struct.error:
            continue
        return changed
    return row


def reorder_renumbered(frames: list[Frame], chance: Random) -> list[Frame]:
    """Move a frame elsewhere, or delete it, and number all frames again."""
    place = chance.randrange(len(frames))
    rest = frames[:place] + frames[place + 1 :]
    if chance.random() < 0.5:
        rest.insert(chance.randrange(len(rest) + 1), frames[place])
    return [(number, kind, payload) for number, (_, kind, payload) in enumerate(rest)]


FRAMES = (
    *(_of_frames(one, is_revealed=True) for one in (delete_frame, repeat_frame, repeat_spans_renumbered)),
    *(
        _of_frames(one, is_revealed=False)
        for one in (
            swap_frames,
            other_sequence,
            other_kind,
            other_payload,
            odd_json,
            odd_json,
            odd_field,
            odd_field,
        )
    ),
    *(_of_frames(one, is_revealed=False) for one in (odd_json, odd_integer, reorder_renumbered)),
)
