from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stagescope.record.format import (
    ANCHOR,
    ANCHOR_FIELDS,
    END,
    HEAD,
    HEADER,
    MAGIC,
    MAX_PAYLOAD_BYTES,
    NAMES,
    SPAN,
    SPAN_FIELDS,
    SPANS,
    Frame,
    Gap,
    encode_frame,
    scan_blocks,
    scan_frames,
)

PAYLOADS = [b'{"rank":0}', b"", MAGIC + b"inside", bytes(range(40)), b"\xab" * 3, b'{"reason":"exit"}']
TYPES = [HEADER, NAMES, SPANS, SPANS, SPANS, END]


def small_file() -> tuple[bytes, list[int]]:
    """Return a recording of six frames and the offsets of their ends."""
    frames = [encode_frame(n, TYPES[n], payload) for n, payload in enumerate(PAYLOADS)]
    ends = [sum(map(len, frames[: n + 1])) for n in range(len(frames))]
    return b"".join(frames), ends


def facts(item: Frame | Gap) -> tuple:
    return (
        (item.sequence, item.type, bytes(item.payload))
        if isinstance(item, Frame)
        else ("gap", item.truncated)
    )


def test_frame_layout_matches_the_documentation():
    frame = encode_frame(7, SPANS, b"abc")
    assert frame[:4] == b"\xabSSC"
    assert int.from_bytes(frame[4:8], "little") == 7
    assert int.from_bytes(frame[8:12], "little") == 3
    assert frame[12] == SPANS
    assert frame[13:16] == b"\0\0\0"
    assert frame[20:] == b"abc"


@pytest.mark.parametrize(("record", "fields"), [(SPAN, SPAN_FIELDS), (ANCHOR, ANCHOR_FIELDS)])
def test_declared_fields_cover_the_record(record, fields):
    assert sum(int(dtype[-1]) for _, dtype in fields) == record.size


@given(st.lists(st.tuples(st.integers(1, 255), st.binary(max_size=200)), max_size=8))
def test_scan_returns_encoded_frames(written):
    data = b"".join(encode_frame(n, kind, payload) for n, (kind, payload) in enumerate(written))
    expected = [(n, kind, payload) for n, (kind, payload) in enumerate(written)]
    assert [facts(item) for item in scan_frames(data)] == expected


def test_sequence_numbers_wrap_after_32_bits():
    (frame,) = scan_frames(encode_frame(2**32 + 5, SPANS, b""))
    assert frame.sequence == 5


def test_truncation_keeps_the_frames_before_it_and_one_truncated_gap():
    data, ends = small_file()
    for cut in range(len(data)):
        items = list(scan_frames(data[:cut]))
        whole = sum(end <= cut for end in ends)
        expected = [(n, TYPES[n], PAYLOADS[n]) for n in range(whole)]
        expected += [("gap", True)] if cut not in (0, *ends) else []
        assert [facts(item) for item in items] == expected, cut


def test_gap_after_truncation_covers_the_rest():
    data, ends = small_file()
    for cut in set(range(1, len(data))) - set(ends):
        gap = list(scan_frames(data[:cut]))[-1]
        assert (gap.offset, gap.offset + gap.size_bytes) == (max([0, *(e for e in ends if e < cut)]), cut)


def test_flipped_bit_loses_only_the_frame_that_contains_it():
    data, ends = small_file()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        hit = sum(end <= bit // 8 for end in ends)
        frames = [item for item in scan_frames(bytes(damaged)) if isinstance(item, Frame)]
        expected = [(n, TYPES[n], PAYLOADS[n]) for n in range(len(ends)) if n != hit]
        assert [facts(frame) for frame in frames] == expected, bit


@given(st.binary(max_size=300))
@example(MAGIC)
@example(MAGIC + b"\xff" * 16)
@example(MAGIC * 30)
@example(b"\0" * 100)
def test_frames_and_gaps_cover_any_input(data):
    position = 0
    for item in scan_frames(data):
        assert item.offset == position
        position += HEAD.size + len(item.payload) if isinstance(item, Frame) else item.size_bytes
    assert position == len(data)


@given(st.lists(st.binary(min_size=1, max_size=60), min_size=7, max_size=7))
def test_garbage_between_frames_is_skipped(garbage):
    frames = [encode_frame(n, TYPES[n], payload) for n, payload in enumerate(PAYLOADS)]
    data = b"".join(piece for pair in zip(garbage, frames, strict=False) for piece in pair) + garbage[-1]
    found = [facts(item) for item in scan_frames(data) if isinstance(item, Frame)]
    assert found == [(n, TYPES[n], PAYLOADS[n]) for n in range(len(PAYLOADS))]


def test_trailing_zeros_are_a_gap_but_not_truncated():
    data, _ = small_file()
    items = list(scan_frames(data + b"\0" * 4096))
    assert items[-1] == Gap(len(data), 4096, truncated=False)


def test_oversized_frame_is_rejected_despite_a_valid_checksum():
    frame = encode_frame(0, SPANS, b"\0" * (MAX_PAYLOAD_BYTES + 1))
    assert [facts(item) for item in scan_frames(frame)] == [("gap", False)]


def test_longest_allowed_payload_is_a_frame():
    frame = encode_frame(0, SPANS, b"\0" * MAX_PAYLOAD_BYTES)
    assert [len(item.payload) for item in scan_frames(frame)] == [MAX_PAYLOAD_BYTES]


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_any_size_have_the_frames_of_the_whole_file(seed):
    random = np.random.default_rng(seed)
    nested = encode_frame(7, SPANS, b"nested")
    payloads = [random.bytes(int(random.integers(0, 90))) for _ in range(12)]
    payloads[5] = payloads[5] + nested + payloads[6]
    parts = [encode_frame(number, SPANS, payload) for number, payload in enumerate(payloads)]
    data = bytearray(b"".join(part + MAGIC[: int(random.integers(0, 5))] * (seed % 3 == 1) for part in parts))
    for at in random.integers(0, len(data), seed % 5):
        data[at] ^= 0x40
    data = bytes(data[: len(data) - int(random.integers(0, 30))])
    expected = list(scan_frames(data))
    for size in (1, 2, 3, 19, 20, 21, 64, 1000):
        blocks = [data[at : at + size] for at in range(0, len(data), size)]
        assert list(scan_blocks(blocks)) == expected
