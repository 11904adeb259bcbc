"""The latest input of every action."""

from hypothesis import given, settings

from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.latest_inputs import NEVER_NS, NO_ACTION, find_latest_inputs
from waiting import added, message

PIPELINE = """
F0 .  .  .  B0
.  F0 B0 .  .
"""


def inputs_of(timeline) -> dict[tuple[int, str], tuple]:
    """Return per rank and kind what the action needed last: rank of its producer, made, there, timed, lost."""
    actions = find_actions(timeline)
    rank, kind = actions.table["rank"].to_list(), actions.table["kind"].to_list()
    rows = zip(*(column.tolist() for column in find_latest_inputs(actions)[:5]), strict=True)
    return {
        (rank[action], kind[action]): (rank[producer] if producer >= 0 else NO_ACTION, *facts)
        for action, (producer, *facts) in enumerate(rows)
    }


def test_last_input_to_arrive_is_the_latest():
    timeline = added(timeline_from_text(PIPELINE, cell_ns=10), *message(1, 0, 0, 30, 36))
    assert inputs_of(timeline) == {
        (0, "forward"): (NO_ACTION, NEVER_NS, NEVER_NS, True, False),
        (0, "backward"): (1, 30, 36, True, False),
        (1, "forward"): (0, 10, 10, False, False),
        (1, "backward"): (1, 20, 20, True, False),
    }


def test_arrival_before_the_end_of_its_producer_counts_from_that_end():
    timeline = added(timeline_from_text(PIPELINE, cell_ns=10), *message(1, 0, 0, 25, 27))
    assert inputs_of(timeline)[0, "backward"] == (1, 30, 30, True, False)


def test_unrecorded_necessary_input_is_lost():
    timeline = timeline_from_text("F1 . . .\n. F0 B0 .", cell_ns=10)
    assert inputs_of(timeline)[1, "forward"] == (NO_ACTION, NEVER_NS, NEVER_NS, True, True)
    assert inputs_of(timeline)[1, "backward"][-1] is False


@settings(max_examples=25, deadline=None)
@given(arbitrary_timelines())
def test_no_other_input_arrived_later(timeline):
    actions = find_actions(timeline)
    latest = find_latest_inputs(actions)
    ends_ns = actions.table["end_ns"].to_list()
    for action, needs, arrived_ns in actions.needs.select("action", "needs", "arrived_ns").rows():
        assert max(ends_ns[needs], arrived_ns or ends_ns[needs]) <= latest.there_ns[action]
        assert latest.producer[action] != NO_ACTION
