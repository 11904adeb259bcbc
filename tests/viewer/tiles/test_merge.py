"""Merging against a plain loop over blocks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.viewer.tiles.merge import block_records, blocks_of_records, blocks_of_spans, merge_blocks
from stagescope.viewer.tiles.records import FULL, LANE_COUNT, SPAN


def spans_of(rows):
    """Return records and tracks of (track, start, duration, kind)."""
    rows = sorted(rows)
    records = np.zeros(len(rows), SPAN)
    for place, (track, start, duration, kind) in enumerate(rows):
        records[place]["start"], records[place]["duration"] = start, duration
        records[place]["kind"], records[place]["lane"] = kind, track % LANE_COUNT
    return records, np.array([row[0] for row in rows], np.int64)


def merged_plainly(rows, width):
    """Return (track, start, end, count, busy by kind) of the blocks that merging has to give."""
    blocks = []
    for track, start, duration, kind in sorted(rows):
        last = blocks[-1] if blocks else None
        is_wide = duration >= width
        joins = last and last["track"] == track and not is_wide and not last["wide"]
        if joins and last["bin"] == start // width:
            last["end"] = max(last["end"], start + duration)
            last["count"] += 1
        else:
            last = {"track": track, "start": start, "end": start + duration, "count": 1, "busy": {}}
            last |= {"wide": is_wide, "bin": start // width}
            blocks.append(last)
        last["busy"][kind] = last["busy"].get(kind, 0) + duration
    return blocks


spans = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(0, 60), st.integers(1, 4)), max_size=60
)


@settings(deadline=None)
@given(spans, st.integers(1, 100))
def test_merged_blocks_are_those_of_a_plain_loop(rows, width):
    blocks = merge_blocks(blocks_of_spans(*spans_of(rows)), width)
    found = list(zip(*(column.tolist() for column in blocks[:4]), strict=True))
    wanted = merged_plainly(rows, width)
    assert found == [(one["track"], one["start"], one["end"], one["count"]) for one in wanted]
    for place, one in enumerate(wanted):
        busy = dict(zip(blocks.kinds.tolist(), blocks.kind_busy[:, place].tolist(), strict=True))
        assert {kind: ns for kind, ns in busy.items() if ns} == {k: ns for k, ns in one["busy"].items() if ns}


@settings(deadline=None)
@given(spans, st.integers(0, 7))
def test_no_span_and_no_time_is_lost_on_the_way_up(rows, levels):
    blocks = blocks_of_spans(*spans_of(rows))
    for exponent in range(levels):
        blocks = merge_blocks(blocks, 1 << exponent)
    assert blocks.span_count.sum() == len(rows)
    assert blocks.kind_busy.sum() == sum(duration for _, _, duration, _ in rows)
    assert len(blocks) <= len(rows)


@settings(deadline=None)
@given(spans, st.integers(1, 100))
def test_a_block_covers_its_spans_and_reaches_less_than_a_bin_beyond_any_of_them(rows, width):
    for one in merged_plainly(rows, width):
        own = [row for row in rows if row[0] == one["track"] and one["start"] <= row[1] < one["end"]]
        assert not own or min(row[1] for row in own) == one["start"]
        assert one["count"] == 1 or one["end"] - one["start"] < 2 * width


def test_the_kind_of_a_block_is_that_with_most_time_and_busy_its_covered_part():
    blocks = merge_blocks(blocks_of_spans(*spans_of([(0, 0, 10, 1), (0, 20, 30, 2), (0, 60, 15, 1)])), 128)
    record = block_records(blocks)[0]
    assert (record["kind"], record["duration"], record["count"]) == (2, 75, 3)
    assert record["busy"] == 55 * FULL // 75


def test_spans_without_duration_are_kept_with_a_kind():
    records = block_records(merge_blocks(blocks_of_spans(*spans_of([(0, 5, 0, 3), (0, 6, 0, 3)])), 16))
    assert (records["kind"].tolist(), records["count"].tolist(), records["duration"].tolist()) == (
        [3],
        [2],
        [1],
    )
    alone = block_records(blocks_of_spans(*spans_of([(0, 5, 0, 3)])))
    assert (alone["kind"].tolist(), alone["busy"].tolist()) == ([3], [FULL])


def test_nothing_merges_to_nothing():
    assert len(block_records(merge_blocks(blocks_of_spans(*spans_of([])), 8))) == 0


@settings(deadline=None)
@given(spans)
def test_blocks_that_were_written_go_on_as_blocks(rows):
    records, track = spans_of(rows)
    written = block_records(merge_blocks(blocks_of_spans(records, track), 16))
    tracks = merge_blocks(blocks_of_spans(records, track), 16).track
    again = blocks_of_records(written, tracks)
    assert again.span_count.sum() == len(rows)
    assert again.start.tolist() == written["start"].tolist()
    # What is busy is written in 255ths.
    length = again.end - again.start
    assert (abs(again.kind_busy.sum(axis=0) * FULL - written["busy"].astype(int) * length) <= FULL).all()
