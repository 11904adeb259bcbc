import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from stagescope.exporters.lanes import ROUNDING_NS, assign_lanes


def lanes_of(*bounds):
    """Return (start, end, lane) of every slice, in order of start."""
    slices = pl.DataFrame(bounds, schema=["start_ns", "end_ns"], orient="row").with_columns(group=0)
    return assign_lanes(slices, "group").slices.select("start_ns", "end_ns", "lane").rows()


def test_slices_that_touch_share_a_lane():
    assert lanes_of((0, 10), (10, 20), (20, 20), (20, 30)) == [
        (0, 10, 0),
        (10, 20, 0),
        (20, 20, 0),
        (20, 30, 0),
    ]


def test_slices_that_overlap_go_side_by_side_and_the_first_free_lane_is_reused():
    assert lanes_of((0, 10), (5, 20), (10, 15), (16, 18)) == [
        (0, 10, 0),
        (5, 20, 1),
        (10, 15, 0),
        (16, 18, 0),
    ]


def test_slice_without_length_inside_another_gets_a_lane_of_its_own():
    assert lanes_of((0, 10), (5, 5)) == [(0, 10, 0), (5, 5, 1)]


def test_overlap_within_rounding_ends_the_earlier_slice():
    assert lanes_of((0, 100_000), (100_000 - ROUNDING_NS, 200_000)) == [
        (0, 100_000 - ROUNDING_NS, 0),
        (100_000 - ROUNDING_NS, 200_000, 0),
    ]


def test_short_slices_that_overlap_by_much_of_themselves_are_not_taken_for_rounding():
    assert lanes_of((0, 100), (50, 150)) == [(0, 100, 0), (50, 150, 1)]


def test_trimmed_ends_are_counted():
    slices = pl.DataFrame({"group": [0, 0, 1], "start_ns": [0, 99_999, 0], "end_ns": [100_000, 200_000, 1]})
    assert assign_lanes(slices, "group").trimmed_count == 1


def test_groups_do_not_crowd_each_other():
    slices = pl.DataFrame({"group": [0, 1, 1, 2], "start_ns": [0, 0, 1, 0], "end_ns": [9, 9, 9, 9]})
    assert assign_lanes(slices, "group").slices["lane"].to_list() == [0, 0, 1, 0]


def test_no_slices_give_no_lanes():
    empty = pl.DataFrame(schema={"group": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64})
    assert assign_lanes(empty, "group").slices.is_empty()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50_000), st.integers(0, 20_000)), max_size=40))
def test_no_two_slices_of_one_lane_overlap_and_none_is_lost(drawn):
    slices = pl.DataFrame(drawn, schema=["group", "start_ns", "duration"], orient="row")
    slices = slices.cast(pl.Int64).with_columns(end_ns=pl.col("start_ns") + pl.col("duration"))
    found = assign_lanes(slices, "group").slices
    assert found.height == len(drawn)
    assert (found["end_ns"] >= found["start_ns"]).all()
    for _, lane in found.group_by("group", "lane"):
        ordered = lane.sort("start_ns", "end_ns")
        assert (ordered["start_ns"][1:] >= ordered["end_ns"][:-1]).all()
