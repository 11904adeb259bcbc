"""Packs one span into the bytes of one record, as fast as Python allows.

The layout is that of `record.format.SPAN`. Where a C long has eight bytes and the same byte order, it is written as
``l`` in native mode: CPython 3.11 converts a 45-bit time to ``l`` in half the time that it needs for ``q``.
"""

from __future__ import annotations

import struct
import sys

from stagescope.record.format import NONE, SPAN
from stagescope.vocabulary.kinds import BY_CODE, LANE_CODES, STEP_CODE

LANE_OF_CODE: dict[int, int] = {code: LANE_CODES[kind.lane] for code, kind in BY_CODE.items()} | {
    STEP_CODE: LANE_CODES["host"]
}
"""Lane code of each kind code."""


def _native(layout: str) -> str:
    """Return `layout` in native mode if that produces the same bytes."""
    native = "@" + layout.replace("q", "l")
    same = sys.byteorder == "little" and struct.calcsize(native) == struct.calcsize("<" + layout) == SPAN.size
    return native if same else "<" + layout


_ALL = struct.Struct(_native(SPAN.format.lstrip("<")))
pack_span, pack_span_bytes = _ALL.pack_into, _ALL.pack
"""Pack all fields of a record in order."""

_PLAIN = struct.Struct(_native("qq28sii20s"))
pack_plain, pack_plain_bytes = _PLAIN.pack_into, _PLAIN.pack
"""Pack a span that has only step, stage and micro-batch: start, end, the bytes of `plain_middle`, stage, micro-batch,
and the bytes of one of `plain_tails`.
"""


pack_middle = struct.Struct("<qqqi").pack
"""Packs what is between the times and the stage of a plain span: three unknown times and sizes, and the step."""


def plain_middle(step: int) -> bytes | None:
    """Return the bytes between the times and the stage of a plain span; None if `step` does not fit its field."""
    try:
        return pack_middle(NONE, NONE, NONE, step)
    except struct.error:
        return None


def plain_tails(thread: int) -> dict[str, bytes]:
    """Return the bytes after the micro-batch of a plain span of one thread, by kind name."""
    return {kind.name: action_tail(thread, code, NONE) for code, kind in BY_CODE.items()}


def action_tail(thread: int, kind: int, chunk: int, name: int = 0) -> bytes:
    """Return the bytes after the micro-batch of a plain span of one thread, a kind, a chunk and a name.

    Raises an error of `struct` or LookupError for what is none.
    """
    return _TAIL.pack(NONE, NONE, name, chunk, thread, kind, LANE_OF_CODE[kind])


_TAIL = struct.Struct("<iiIhHBB2x")


def is_packing_error(error: Exception) -> bool:
    """Return whether `error` comes from packing or writing a record, rather than from a signal handler of the training.

    A handler may run between any two bytecodes of the recorder and raise (for example a timer that aborts a step).
    Such an error belongs to the training and must propagate.
    """
    raised_in = error.__traceback__ and error.__traceback__.tb_next
    return raised_in is None or raised_in.tb_frame.f_code.co_name in _ASKED_OF_VALUES


_ASKED_OF_VALUES = ("__index__", "__hash__", "__eq__")
