"""One span as the bytes of one record, packed as fast as Python can.

The layout is that of `vocabulary.recording.SPAN`. Where a C long has eight bytes and the right order, it is spelled
``l`` in native mode: CPython 3.11 turns a time of 45 bits into a long in half the time that it needs for ``q``.
"""

from __future__ import annotations

import struct
import sys

from stagescope.record.format import NONE, SPAN
from stagescope.vocabulary.kinds import BY_CODE, LANE_CODES, STEP_CODE

LANE_OF_CODE: dict[int, int] = {code: LANE_CODES[kind.lane] for code, kind in BY_CODE.items()} | {
    STEP_CODE: LANE_CODES["host"]
}
"""The lane that a kind belongs to, both as codes of the recording."""


def _native(layout: str) -> str:
    """Return `layout` in native mode where that gives the same bytes."""
    native = "@" + layout.replace("q", "l")
    same = sys.byteorder == "little" and struct.calcsize(native) == struct.calcsize("<" + layout) == SPAN.size
    return native if same else "<" + layout


pack_span = struct.Struct(_native(SPAN.format.lstrip("<"))).pack_into
"""Packs all fields of a record in their order."""

pack_plain = struct.Struct(_native("qq28sii20s")).pack_into
"""Packs a span that has nothing but a step, a stage and a micro-batch: its times, what `plain_middle` returns,
stage and micro-batch, and one of `plain_tails`."""


def plain_middle(step: int) -> bytes | None:
    """Return the fields between the times and the stage of a plain span; None for a step that fits no field."""
    try:
        return struct.pack("<qqqi", NONE, NONE, NONE, step)
    except struct.error:
        return None


def plain_tails(thread: int) -> dict[str, bytes]:
    """Return the fields behind the micro-batch of a plain span of one thread, by the word for its kind."""
    tail = struct.Struct("<iiIhHBB2x")
    return {
        kind.name: tail.pack(NONE, NONE, 0, NONE, thread, code, LANE_OF_CODE[code])
        for code, kind in BY_CODE.items()
    }


def is_our_own(error: Exception) -> bool:
    """Return whether packing itself has failed, or the training's number that was being packed.

    A signal's handler of the training may raise just then (a timer that ends a step, say): such an error is
    the training's, and passes.
    """
    raised_in = error.__traceback__ and error.__traceback__.tb_next
    return raised_in is None or raised_in.tb_frame.f_code.co_name in _ASKED_OF_VALUES


_ASKED_OF_VALUES = ("__index__", "__hash__", "__eq__")
