"""The cost of one micro-batch on every stage."""

import polars as pl

from explained_runs import explained
from stagescope.reports.stage_table import stage_lines, versus_others_text


def test_has_times_per_micro_batch_and_the_difference_from_the_others():
    lines = stage_lines(explained(slower={3: 1.4}).explanation.stage_work)
    assert lines[1].split() == ["stage", "forward", "backward", "work", "vs.", "others"]
    assert lines[5].split() == ["3", "14.00", "ms", "28.00", "ms", "42.00", "ms", "+40.0", "%"]


def test_weight_gradients_have_a_column_if_there_are_any():
    lines = stage_lines(explained(name="zb-h1").explanation.stage_work)
    assert "weight" in lines[1]


def test_shows_sixteen_of_many_stages_and_counts_the_others():
    lines = stage_lines(pl.concat([explained().explanation.stage_work] * 5))
    assert len(lines) == 2 + 16 + 1
    assert lines[-1] == "4 stages not shown"


def test_stage_without_backwards_has_no_time_for_them():
    lines = stage_lines(explained().explanation.stage_work.with_columns(backward_ns=pl.lit(0)))
    assert lines[2].split()[:5] == ["0", "10.00", "ms", "-", "30.00"]


def test_an_unknown_difference_is_blank():
    assert versus_others_text(None) == ""
    assert versus_others_text(0.98) == "-2.0 %"


def test_zero_has_no_minus_sign():
    assert versus_others_text(0.99999) == "+0.0 %"
