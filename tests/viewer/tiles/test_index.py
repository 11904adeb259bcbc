import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagescope.viewer.tiles.index import STRIDE, index_tracks, join_indexes, load_index, save_index
from stagescope.viewer.tiles.records import BLOCK

TRACKS = 4


def blocks_of(tracks):
    """Return records and tracks of (start, duration) lists per track."""
    rows = [(track, *block) for track, blocks in enumerate(tracks) for block in sorted(blocks)]
    records = np.zeros(len(rows), BLOCK)
    records["start"], records["duration"] = [row[1] for row in rows], [row[2] for row in rows]
    return records, np.array([row[0] for row in rows], np.int64)


@st.composite
def drawn_tracks(draw):
    """Return tracks of which some have more blocks than one entry covers, and some blocks are long."""
    seed = draw(st.integers(0, 2**32 - 1))
    counts = draw(
        st.lists(st.sampled_from([0, 1, 5, STRIDE, 3 * STRIDE + 1]), min_size=TRACKS, max_size=TRACKS)
    )
    random = np.random.default_rng(seed)
    return [
        list(
            zip(random.integers(0, 1000, count).tolist(), random.integers(0, 90, count).tolist(), strict=True)
        )
        for count in counts
    ]


@settings(deadline=None)
@given(drawn_tracks(), st.integers(-10, 1100), st.integers(1, 400))
def test_every_block_that_overlaps_is_found_and_few_others(tracks, start, length):
    records, track = blocks_of(tracks)
    index = index_tracks(records, track, TRACKS)
    begin, stop = index.ranges(np.arange(TRACKS), start, start + length)
    seen_until = records["start"] + np.maximum(records["duration"], 1)
    overlaps = (records["start"] < start + length) & (seen_until > start)
    for number in range(TRACKS):
        within = np.zeros(len(records), bool)
        within[begin[number] : stop[number]] = True
        assert not (overlaps & (track == number) & ~within).any()
        assert not (within & (track != number)).any()


@settings(deadline=None)
@given(drawn_tracks(), drawn_tracks())
def test_two_chunks_are_indexed_as_one(first, second):
    whole = index_tracks(*blocks_of([*first, *second]), 2 * TRACKS)
    joined = join_indexes([index_tracks(*blocks_of(part), TRACKS) for part in (first, second)])
    assert [values.tolist() for values in joined] == [values.tolist() for values in whole]


def test_an_index_is_read_as_it_was_written_and_not_where_it_is_cut(tmp_path):
    index = index_tracks(*blocks_of([[(5, 2)] * 100, []]), 2)
    path = tmp_path / "spans.index"
    save_index(index, path)
    assert [values.tolist() for values in load_index(path)] == [values.tolist() for values in index]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises((OSError, ValueError)):
        load_index(path)
