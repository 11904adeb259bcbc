from bisect import bisect_left

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stagescope.model.segments import search_segments

SEGMENTS = st.lists(
    st.tuples(st.lists(st.integers(-9, 9), max_size=9).map(sorted), st.integers(-10, 10)), max_size=6
)


@given(SEGMENTS)
def test_every_row_is_searched_in_its_own_stretch(segments):
    values = np.array([value for stretch, _ in segments for value in stretch], dtype=np.int64)
    stop = np.cumsum([len(stretch) for stretch, _ in segments], dtype=np.int64)
    first = stop - np.array([len(stretch) for stretch, _ in segments], dtype=np.int64)
    wanted = np.array([want for _, want in segments], dtype=np.int64)
    found = search_segments(values, first, stop, wanted)
    expected = [
        begin + bisect_left(stretch, want) for begin, (stretch, want) in zip(first, segments, strict=True)
    ]
    assert found.tolist() == expected
