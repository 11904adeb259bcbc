"""Binding constraints of actions."""

from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from random_pipelines import arbitrary_timelines, simulated_timelines
from stagescope.analysis.graph.actions import find_actions
from stagescope.vocabulary.kinds import label
from waiting import added, constraints_of, message


def bound_by(timeline) -> dict[str, str | None]:
    """Return per action the action that bound it."""
    actions = find_actions(timeline)
    binding_constraints = constraints_of(actions)
    names = [label(*action) for action in actions.table.select("kind", "stage", "microbatch").rows()]
    in_order = [*(names[action] for action in binding_constraints.plan.order), None]
    return {in_order[place]: in_order[source] for place, source in enumerate(binding_constraints.bound)}


def test_last_constraint_binds_the_action():
    assert bound_by(timeline_from_text("F0 F1 .\n.  F0 F1")) == {
        "F0.0": None,
        "F0.1": "F0.0",
        "F1.0": "F0.0",
        "F1.1": "F1.0",  # both inputs were there at once: the one of its own rank
    }


def test_transfer_makes_its_sender_the_binding_action():
    drawn = timeline_from_text("F0 F1 .  .\n.  F0 .  F1", cell_ns=10)
    assert bound_by(added(drawn, *message(0, 1, 1, 20, 29)))["F1.1"] == "F0.1"


def test_late_receive_does_not_make_its_sender_binding():
    drawn = timeline_from_text("F0 F1 .  .  .  .\n.  .  F0 -  .  F1", cell_ns=10)
    late = added(drawn, *message(0, 1, 0, 10, 12), *message(0, 1, 1, 20, 42))
    assert bound_by(late)["F1.1"] == "F1.0"


@settings(max_examples=30, deadline=None)
@given(st.one_of(arbitrary_timelines(), simulated_timelines()))
def test_no_action_starts_before_its_constraint_is_met(timeline):
    binding_constraints = constraints_of(find_actions(timeline))
    count = len(binding_constraints.bound)
    assert (binding_constraints.ready_ns <= binding_constraints.start_ns[:count]).all()
    for source, lag_ns in binding_constraints.constraints:
        bound = source < count
        assert (binding_constraints.end_ns[source] + lag_ns <= binding_constraints.ready_ns)[bound].all()


@settings(max_examples=25, deadline=None)
@given(simulated_timelines())
def test_simulated_action_starts_when_its_constraints_are_met(timeline):
    binding_constraints = constraints_of(find_actions(timeline))
    assert (
        binding_constraints.ready_ns == binding_constraints.start_ns[: len(binding_constraints.bound)]
    ).all()
