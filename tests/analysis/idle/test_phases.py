"""Warm-up, steady phase and cool-down, cut by definition."""

import polars as pl
import pytest
from hypothesis import given, settings

from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines
from stagescope.analysis.idle.phases import STEP_PHASES
from stagescope.model import empty_timeline
from waiting import bubbles_of, phases_of

ONE_F_ONE_B = """
F0 F1 F2 F3 .  .  .  .  .  .  B0 -  F4 B1 -  F5 B2 -  B3 -  .  B4 -  .  B5 -
.  F0 F1 F2 .  .  .  .  B0 -  F3 B1 -  F4 B2 -  F5 B3 -  .  B4 -  .  B5 -  .
"""


def figures(text: str) -> list[tuple]:
    found = phases_of(timeline_from_text(text, cell_ns=10))
    return found.select("rank", "phase", "start_ns", "end_ns", "busy_ns", "idle_ns").rows()


def test_1f1b_is_steady_from_first_backward_to_last_forward():
    assert figures(ONE_F_ONE_B) == [
        (0, "warm-up", 0, 100, 40, 60),
        (0, "steady", 100, 160, 60, 0),
        (0, "cool-down", 160, 260, 80, 20),
        (1, "warm-up", 0, 80, 30, 50),
        (1, "steady", 80, 170, 90, 0),
        (1, "cool-down", 170, 260, 60, 30),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [("F0 F1 . . B0 B1", "GPipe"), ("F0 F1 . . I0 I1 W0 W1", "GPipe with a split backward")],
)
def test_schedule_without_alternation_has_no_steady_phase(text, why):
    rows = phases_of(timeline_from_text(text, cell_ns=10))
    assert rows["duration_ns"].to_list()[:2] == [40, 0], why
    assert rows["idle_ns"].to_list() == [20, 0, 0]
    assert rows["idle_fraction"].to_list() == [0.5, None, 0.0]


def test_split_backward_starts_with_its_input_half():
    assert figures("F0 I0 F1 I1 W0 . W1") == [
        (0, "warm-up", 0, 10, 10, 0),
        (0, "steady", 10, 30, 20, 0),
        (0, "cool-down", 30, 70, 30, 10),
    ]


def test_weight_gradient_bounds_no_phase():
    assert [row[3] for row in figures("W0 F0 . B0 F1 .")] == [30, 50, 50]


def test_rank_without_backward_only_warms_up():
    assert figures("F0 F1 .  .\n.  F0 F1 B1") == [
        (0, "warm-up", 0, 40, 20, 20),
        (0, "steady", 40, 40, 0, 0),
        (0, "cool-down", 40, 40, 0, 0),
        (1, "warm-up", 0, 30, 20, 10),
        (1, "steady", 30, 30, 0, 0),
        (1, "cool-down", 30, 40, 10, 0),
    ]


def test_rank_without_forward_has_no_steady_phase():
    assert figures(".  B0 B1") == [
        (0, "warm-up", 10, 10, 0, 0),
        (0, "steady", 10, 10, 0, 0),
        (0, "cool-down", 10, 30, 20, 0),
    ]


def test_timeline_without_actions_has_no_phases():
    found = phases_of(empty_timeline())
    assert found.is_empty()
    assert dict(found.schema) == dict(STEP_PHASES.schema)


@settings(max_examples=20, deadline=None)
@given(arbitrary_timelines())
def test_phases_sum_to_window_busy_and_idle_time(timeline):
    bubbles, found = bubbles_of(timeline), phases_of(timeline)
    assert dict(found.schema) == dict(STEP_PHASES.schema)
    assert (found["duration_ns"] >= 0).all()
    assert (found["idle_ns"] >= 0).all()
    sums = (
        found.group_by("step", "rank").agg(pl.sum("duration_ns", "busy_ns", "idle_ns")).sort("step", "rank")
    )
    expected = bubbles.select("step", "rank", duration_ns="window_ns", busy_ns="busy_ns", idle_ns="idle_ns")
    assert sums.equals(expected)


@settings(max_examples=20, deadline=None)
@given(arbitrary_timelines())
def test_shifting_all_clocks_shifts_phases_but_not_their_length(timeline):
    moved = timeline.with_spans(timeline.spans.with_columns(pl.col("start_ns", "end_ns") + 10**17))
    lengths = ["step", "rank", "phase", "duration_ns", "busy_ns", "idle_ns"]
    assert phases_of(moved).select(lengths).equals(phases_of(timeline).select(lengths))
