"""Finding the range that encloses a call."""

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from nsight_reports import thread
from stagescope.ingest.device_ranges.enclosing_ranges import NO_RANGE, EnclosingRanges, Intervals


def actions(*rows):
    schema = {
        "action": pl.Int64,
        "thread": pl.Int64,
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "is_backward": pl.Boolean,
    }
    return pl.DataFrame(rows, schema, orient="row")


def find(enclosing, *calls):
    threads, moments = zip(*calls, strict=True)
    return enclosing.find(np.array(threads, np.int64), np.array(moments, np.int64)).tolist()


@st.composite
def nested(draw, start=0, end=1000, depth=3):
    """Draw intervals between `start` and `end` that nest but do not cross."""
    if depth == 0 or end - start < 4:
        return []
    cuts = sorted(draw(st.lists(st.integers(start, end), max_size=6, unique=True)))
    found = []
    for a, b in zip(cuts[::2], cuts[1::2], strict=False):
        found += [(a, b), *draw(nested(a + 1, b - 1, depth - 1))]
    return found


@settings(deadline=None, max_examples=50)
@given(nested(), st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_finds_the_innermost_interval(intervals, moments):
    columns = np.array(intervals, np.int64).reshape(-1, 2).T
    found = Intervals(*columns, np.arange(len(intervals))).find(np.array(moments))
    for moment, number in zip(moments, found.tolist(), strict=True):
        containing = [(b - a, n) for n, (a, b) in enumerate(intervals) if a <= moment <= b]
        assert number == (min(containing)[1] if containing else NO_RANGE)


def test_a_call_belongs_to_its_own_thread():
    enclosing = EnclosingRanges(actions((0, thread(7, 1), 0, 100, False), (1, thread(7, 2), 0, 100, False)))
    assert find(enclosing, (thread(7, 1), 50), (thread(7, 2), 50), (thread(7, 1), 150)) == [0, 1, NO_RANGE]


def test_a_thread_without_ranges_belongs_to_the_open_backward_of_its_process():
    enclosing = EnclosingRanges(
        actions((0, thread(7), 0, 100, False), (1, thread(7), 200, 300, True), (2, thread(8), 0, 400, True))
    )
    calls = [(thread(7, 9), 50), (thread(7, 9), 250), (thread(7, 9), 350), (thread(5, 9), 250)]
    assert find(enclosing, *calls) == [NO_RANGE, 1, NO_RANGE, NO_RANGE]
