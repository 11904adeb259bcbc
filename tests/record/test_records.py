from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.record import records
from stagescope.record.format import NONE, SPAN
from stagescope.record.records import (
    LANE_OF_CODE,
    is_packing_error,
    pack_plain,
    pack_span,
    plain_middle,
    plain_tails,
)
from stagescope.vocabulary.kinds import BY_NAME, KIND_NAMES

int16, int32, int64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
uint8, uint16, uint32 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32))
FIELDS = (int64,) * 5 + (int32,) * 5 + (uint32, int16, uint16, uint8, uint8)


@given(values=st.tuples(*FIELDS))
def test_native_layout_equals_the_format(values):
    fast = bytearray(SPAN.size)
    pack_span(fast, 0, *values)
    assert bytes(fast) == SPAN.pack(*values)


@given(start=int64, end=int64, step=int32, stage=int32, microbatch=int32, thread=uint16,
       kind=st.sampled_from(KIND_NAMES))  # fmt: skip
def test_plain_span_equals_the_format(start, end, step, stage, microbatch, thread, kind):  # noqa: PLR0917  # the fields of a span
    plain = bytearray(b"\x55" * SPAN.size)
    pack_plain(plain, 0, start, end, plain_middle(step), stage, microbatch, plain_tails(thread)[kind])
    code = BY_NAME[kind].code
    assert bytes(plain) == SPAN.pack(
        start, end, NONE, NONE, NONE, step, stage, microbatch, NONE, NONE, 0, NONE, thread, code, LANE_OF_CODE[code]
    )  # fmt: skip


def test_out_of_range_step_has_no_plain_span():
    assert plain_middle(2**31) is None
    with pytest.raises(struct.error):
        pack_plain(bytearray(SPAN.size), 0, 1, 2, None, 0, 0, plain_tails(0)["forward"])


def test_other_platforms_use_the_standard_layout(monkeypatch):
    monkeypatch.setattr(records.sys, "byteorder", "big")
    assert records._native("qq") == "<qq"


class Number:
    def __index__(self):
        raise ValueError("planted")


def fail_in_a_handler():
    raise ValueError("planted")


@pytest.mark.parametrize(("act", "ours"), [
    (lambda: struct.pack("<i", None), True),
    (lambda: struct.pack("<i", Number()), True),
    (fail_in_a_handler, False),
])  # fmt: skip
def test_only_packing_errors_are_recognized(act, ours):
    code = act.__code__
    try:
        act() if not ours else eval(code, act.__globals__)  # noqa: S307  # so that the test module's globals apply
    except Exception as error:  # noqa: BLE001  # any exception
        found = error
        if ours:  # the evaluated code has a frame of its own
            found = found.with_traceback(found.__traceback__.tb_next)
    assert is_packing_error(found) is ours
