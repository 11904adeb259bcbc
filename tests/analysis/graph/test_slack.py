"""Slack of actions."""

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines, blocked_timelines, one_f_one_b, simulated_timelines
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.blocking_sends import find_blocking_sends
from stagescope.analysis.graph.slack import SLACK, measure_slack
from stagescope.ingest.simulation import timeline_of_simulation
from stagescope.model import empty_timeline
from stagescope.schedules import simulate
from stagescope.schedules.costs import Costs
from stagescope.vocabulary.kinds import label
from waiting import added, constraints_of, message, path_of, slack_of


def slacks(timeline) -> dict[str, int]:
    return {
        label(row["kind"], row["stage"], row["microbatch"]): row["slack_ns"]
        for row in slack_of(timeline).iter_rows(named=True)
    }


def test_slack_of_a_fast_stage_is_its_wait_for_the_slow_one():
    text = """
    F0 F1 F2 .  .  .  .  .  .  .  .
    .  F0 -  -  F1 -  -  F2 -  -  .
    .  .  .  .  F0 .  .  F1 .  .  F2
    """
    assert slacks(timeline_from_text(text, cell_ns=10)) == {
        "F0.0": 0,
        "F0.1": 20,
        "F0.2": 40,
        "F1.0": 0,
        "F1.1": 0,
        "F1.2": 0,
        "F2.0": 40,
        "F2.1": 20,
        "F2.2": 0,
    }


def test_transfer_reduces_the_slack():
    timeline = timeline_from_text("F0 F1 .  .  .\n.  F0 -  F1 .", cell_ns=10)
    assert slacks(timeline)["F0.1"] == 10
    assert slacks(added(timeline, *message(0, 1, 1, 20, 26)))["F0.1"] == 4


def test_late_receive_takes_no_more_slack_than_others_on_its_link():
    # F0 was waited for and took 2 ns; F1 came while its receiver was busy, and was noticed 2 ns after that.
    drawn = timeline_from_text("F0 F1 .  .  .  .\n.  .  F0 -  .  F1", cell_ns=10)
    late = added(drawn, *message(0, 1, 0, 10, 12), *message(0, 1, 1, 20, 42))
    assert slacks(late)["F0.1"] == 40 - 22


def test_action_without_successor_has_slack_to_the_end_of_the_step():
    assert slacks(timeline_from_text("F0 .  . .\nF1 F2 F3 F4", cell_ns=10)) == {
        "F0.0": 30,
        "F1.1": 0,
        "F1.2": 0,
        "F1.3": 0,
        "F1.4": 0,
    }


@pytest.mark.parametrize("released_ns", [45, 55])
def test_blocking_send_after_the_last_action_of_its_rank_takes_no_slack(released_ns):
    """Nothing waits for the end of the send: rank 1 has its input at 10, and the step ends at 50 either way."""
    text = """
    F0 .  .  .  .
    .  F0 .  .  .
    F1 -  -  -  F0
    """
    sent, received = message(0, 1, 0, 10, 10)
    blocked = {**sent, "end_ns": released_ns, "wait_start_ns": 10, "wait_end_ns": released_ns}
    timeline = added(timeline_from_text(text, cell_ns=10), blocked, received, *message(1, 2, 0, 20, 20))
    assert len(find_blocking_sends(find_actions(timeline)).need) == 1
    assert slacks(timeline) == {"F0.0": 20, "F1.0": 20, "F2.1": 0, "F2.0": 0}


def test_blocking_send_that_ends_after_the_step_makes_no_slack_negative():
    """All actions take no time at 0: when the send ends, at 1, its receiver and the step have ended."""
    drawn = timeline_from_text("F0\nF0", cell_ns=10)
    at_once = drawn.with_spans(drawn.spans.with_columns(end_ns="start_ns"))
    sent, _ = message(0, 1, 0, 0, 1)
    timeline = added(at_once, {**sent, "wait_start_ns": 0, "wait_end_ns": 1})
    assert len(find_blocking_sends(find_actions(timeline)).need) == 1
    assert slacks(timeline) == {"F0.0": 0, "F1.0": 0}


def test_timeline_without_actions_has_no_slack():
    actions = find_actions(empty_timeline())
    found = measure_slack(actions, constraints_of(actions))
    assert found.is_empty()
    assert dict(found.schema) == dict(SLACK.schema)


@settings(max_examples=25, deadline=None)
@given(st.one_of(arbitrary_timelines(), simulated_timelines(), blocked_timelines()))
def test_slack_is_never_negative_and_zero_on_the_path(timeline):
    found = slack_of(timeline)
    assert (found["slack_ns"] >= 0).all()
    on_path = path_of(timeline).select("action").unique()
    assert (found.join(on_path, on="action")["slack_ns"] == 0).all()


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[dict[int, list[str]], Costs]:
    """Return an order and the cost of every single action."""
    stages, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    cells = [(stage, microbatch) for stage in range(stages) for microbatch in range(microbatches)]
    forward, backward = ({cell: draw(st.integers(1, 30)) for cell in cells} for _ in range(2))
    return one_f_one_b(stages, microbatches), Costs(
        forward=forward, backward=backward, hop=draw(st.integers(0, 9))
    )


@settings(max_examples=20, deadline=None)
@given(pipelines(), st.randoms(use_true_random=False))
def test_delay_by_the_slack_keeps_the_step_and_by_one_more_extends_it(pipeline, random):
    order, costs = pipeline
    step = simulate(order, costs)
    action = random.choice(slack_of(timeline_of_simulation(step)).rows(named=True))

    def makespan_ns(longer_ns: int) -> int:
        cell, kind = (action["stage"], action["microbatch"]), action["kind"]
        amounts = getattr(costs, kind)
        longer = {**amounts, cell: amounts[cell] + longer_ns}
        return simulate(order, replace(costs, **{kind: longer})).makespan_ns

    assert makespan_ns(action["slack_ns"]) == step.makespan_ns
    assert makespan_ns(action["slack_ns"] + 1) == step.makespan_ns + 1


@settings(max_examples=15, deadline=None)
@given(arbitrary_timelines(), st.integers(-(2**40), 2**60))
def test_shifting_all_clocks_changes_no_slack(timeline, shift_ns):
    times = pl.col("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")
    moved = slack_of(timeline.with_spans(timeline.spans.with_columns(times + shift_ns)))
    assert moved["slack_ns"].equals(slack_of(timeline)["slack_ns"])
