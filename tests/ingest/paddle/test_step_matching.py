"""Slots of ranks become numbered steps."""

import polars as pl
import pytest

from stagescope.ingest.paddle.step_matching import match_steps

SCHEMA = {
    "rank": pl.Int32, "clock": pl.String, "slot": pl.Int32, "launch": pl.Int32, "banner_first": pl.Int32,
    "banner_stop": pl.Int32, "nvtx_step": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64, "is_tail": pl.Boolean,
}  # fmt: skip


def steps(*ranks: list[tuple[int, int]], clocks=None, **facts):
    """Return the steps of each rank's windows; `facts` has a list per rank with a value per slot."""
    rows = [
        {"rank": rank, "clock": clocks[rank] if clocks else "c", "slot": slot, "launch": 0, "is_tail": False}
        | {"start_ns": start, "end_ns": end}
        | {name: values[rank][slot] for name, values in facts.items()}
        for rank, windows in enumerate(ranks)
        for slot, (start, end) in enumerate(windows)
    ]
    found, notes = match_steps(pl.DataFrame(rows, SCHEMA))
    numbers = [found.filter(rank=rank).sort("slot")["step"].to_list() for rank in range(len(ranks))]
    return numbers, [note.severity for note in notes if note.code != "steps.numbered_from_0"]


def test_overlapping_windows_are_one_step():
    assert steps([(0, 90), (100, 190)], [(30, 60), (130, 160)]) == ([[0, 1], [0, 1]], [])


def test_ranks_with_different_first_or_last_steps_are_matched_by_time():
    assert steps([(0, 90), (100, 190)], [(130, 160), (230, 260)])[0] == [[0, 1], [1, 2]]


def test_a_step_missing_in_the_longest_log_is_inserted():
    assert steps([(0, 90), (200, 290), (300, 390)], [(30, 60), (130, 160)])[0] == [[0, 2, 3], [0, 1]]


def test_the_tail_of_a_step_belongs_to_the_previous_one():
    ranks = [(0, 70), (100, 170)], [(80, 98), (101, 190)]
    assert steps(*ranks, is_tail=[[False] * 2, [True, False]])[0] == [[0, 1], [0, 1]]


@pytest.mark.parametrize(("skew", "warned"), [(-40, ["warning"]), (-20, []), (20, []), (40, ["warning"])])
def test_clock_offsets_are_matched_by_overlap_with_a_timely_warning(skew, warned):
    true = [(0, 90), (100, 190), (200, 290)]
    skewed = [(start + skew, end + skew) for start, end in true]
    assert steps(true, skewed, clocks="ab") == ([[0, 1, 2]] * 2, warned)


def test_machines_whose_steps_hardly_overlap_are_a_warning():
    assert steps([(0, 90), (100, 190)], [(60, 150), (160, 250)], clocks="ab")[1] == ["warning"]


def test_the_banner_gives_the_number_of_the_first_step():
    assert steps([(0, 9), (10, 19)], banner_first=[[7, 7]])[0] == [[7, 8]]


def test_each_launch_has_the_numbers_of_its_banner():
    ranks = [[(0, 9), (10, 19), (50, 59)]] * 2
    found = steps(*ranks, launch=[[0, 0, 1]] * 2, banner_first=[[10, 10, 50]] * 2)
    assert found == ([[10, 11, 50]] * 2, ["info"])


def test_a_launch_with_used_numbers_continues_with_a_warning():
    ranks = [[(0, 9), (10, 19), (50, 59), (60, 69)]]
    found = steps(*ranks, launch=[[0, 0, 1, 1]], banner_first=[[10, 10, 11, 11]])
    assert found == ([[10, 11, 12, 13]], ["warning", "info"])


def test_a_launch_seen_by_one_rank_begins_for_all():
    ranks = [(0, 9), (50, 59)], [(0, 9), (10, 19), (50, 59)]
    found = steps(*ranks, launch=[[0, 1], [0, 0, 1]], banner_first=[[3, 30], [3, 3, 30]])
    assert found[0] == [[3, 30], [3, 4, 30]]


def test_more_steps_than_the_banner_announces_are_a_warning():
    ranks = [[(0, 9), (10, 19), (20, 29)]]
    found = steps(*ranks, banner_first=[[5] * 3], banner_stop=[[7] * 3])
    assert found == ([[5, 6, 7]], ["warning"])


def test_nvtx_ranges_take_precedence_over_banners():
    found = steps([(0, 9), (10, 19), (20, 29)], nvtx_step=[[None, 41, 42]], banner_first=[[5] * 3])
    assert found == ([[40, 41, 42]], [])
