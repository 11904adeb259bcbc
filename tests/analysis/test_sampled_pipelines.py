"""Groups of pipelines, and the pipelines of a sample."""

from __future__ import annotations

from itertools import pairwise

import polars as pl
import pytest

from stagescope.analysis.sampled_pipelines import (
    LARGE_STEP,
    choose_pipelines,
    group_pipelines,
    has_large_steps,
)


def counts_of(spans):
    return pl.DataFrame({"pipeline": [4 * number for number in range(len(spans))], "spans": spans})


def windows_of(lengths, steps=(7,)):
    """Return windows of pipelines with two ranks each, the second of which begins and ends later."""
    return pl.DataFrame([
        {"pipeline": 4 * number, "step": step, "rank": 4 * number + late,
         "window_start_ns": late, "window_end_ns": length - 1 + late}
        for number, length in enumerate(lengths)
        for step in steps
        for late in (0, 1)
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "spans", "expected"),
    [(1, LARGE_STEP, False), (1, LARGE_STEP + 1, True), (10, 10 * LARGE_STEP, False), (0, 10**9, False)],
)
def test_steps_are_large_by_their_mean_number_of_spans(steps, spans, expected):
    assert has_large_steps(steps, spans) is expected


def test_groups_have_all_pipelines_once_and_no_more_spans_than_allowed():
    counts = counts_of([3, 9, 1, 1, 25, 2, 8])
    groups = group_pipelines(counts.sample(fraction=1.0, shuffle=True, seed=1), 10)
    assert groups == [(0,), (4, 8), (12,), (16,), (20, 24)]
    assert group_pipelines(counts, 1000) == [tuple(counts["pipeline"])]
    assert group_pipelines(counts.clear(), 10) == []


def test_a_sample_has_the_slowest_pipelines_and_others_evenly():
    lengths = [100] * 30
    lengths[7], lengths[22] = 130, 120
    chosen = choose_pipelines(windows_of(lengths), counts_of([10] * 30), 60)
    assert chosen is not None
    assert {28, 88} < set(chosen)
    assert len(chosen) == 6
    others = sorted({*chosen} - {28, 88})
    assert all(20 <= later - one <= 40 for one, later in pairwise(others))


def test_a_sample_that_has_all_pipelines_is_no_sample():
    assert choose_pipelines(windows_of([5] * 8), counts_of([10] * 8), 80) is None
    assert choose_pipelines(windows_of([5] * 3), counts_of([10] * 3), 1) is None


def test_a_sample_has_pipelines_to_compare_with_if_a_single_one_is_large():
    chosen = choose_pipelines(windows_of([5, 5, 9, 5, 5]), counts_of([100] * 5), 10)
    assert chosen is not None
    assert len(chosen) == 3
    assert 8 in chosen


def test_pipelines_of_different_sizes_do_not_exceed_the_sample():
    spans = [10, 40, 10, 40, 10, 40, 10, 40, 10, 40]
    chosen = choose_pipelines(windows_of([9] * 10), counts_of(spans), 120)
    assert chosen is not None
    assert sum(spans[pipeline // 4] for pipeline in chosen) <= 120


def test_the_slowest_is_that_of_the_longest_mean_window_and_ties_go_by_number():
    windows = pl.concat(
        [windows_of([10, 10, 30, 10, 10, 10], [1]), windows_of([10, 10, 10, 28, 28, 10], [2])]
    )
    assert 8 in (choose_pipelines(windows, counts_of([10] * 6), 31) or ())
    tied = choose_pipelines(windows_of([10] * 6), counts_of([10] * 6), 31)
    assert tied is not None
    assert tied[0] == 0
    unknown = choose_pipelines(windows.clear(), counts_of([10] * 6), 31)
    assert unknown == tied
