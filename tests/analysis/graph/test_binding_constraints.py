"""What bound every operation."""

from hypothesis import given, settings
from hypothesis import strategies as st

from drawing import timeline_from_text
from random_pipelines import lawful_timelines, wild_timelines
from stagescope.analysis.graph.operations import find_operations
from stagescope.vocabulary.kinds import label
from waiting import added, bonds_of, message


def bound_by(timeline) -> dict[str, str | None]:
    """Return per job the job that bound it."""
    operations = find_operations(timeline)
    bonds = bonds_of(operations)
    names = [label(*job) for job in operations.ops.select("kind", "stage", "microbatch").rows()]
    in_order = [*(names[op] for op in bonds.plan.order), None]
    return {in_order[place]: in_order[source] for place, source in enumerate(bonds.bound)}


def test_what_came_last_bound_the_operation():
    assert bound_by(timeline_from_text("F0 F1 .\n.  F0 F1")) == {
        "F0.0": None,
        "F0.1": "F0.0",
        "F1.0": "F0.0",
        "F1.1": "F1.0",  # both inputs were there at once: the one of its own rank
    }


def test_a_transfer_makes_its_sender_the_one_that_bound():
    drawn = timeline_from_text("F0 F1 .  .\n.  F0 .  F1", cell_ns=10)
    assert bound_by(added(drawn, *message(0, 1, 1, 20, 29)))["F1.1"] == "F0.1"


def test_a_message_that_was_noticed_late_does_not():
    drawn = timeline_from_text("F0 F1 .  .  .  .\n.  .  F0 -  .  F1", cell_ns=10)
    late = added(drawn, *message(0, 1, 0, 10, 12), *message(0, 1, 1, 20, 42))
    assert bound_by(late)["F1.1"] == "F1.0"


@settings(max_examples=60, deadline=None)
@given(st.one_of(wild_timelines(), lawful_timelines()))
def test_no_operation_starts_before_what_bound_it_allows(timeline):
    bonds = bonds_of(find_operations(timeline))
    count = len(bonds.bound)
    assert (bonds.ready_ns <= bonds.start_ns[:count]).all()
    for source, lag_ns in bonds.bonds:
        bound = source < count
        assert (bonds.end_ns[source] + lag_ns <= bonds.ready_ns)[bound].all()


@settings(max_examples=40, deadline=None)
@given(lawful_timelines())
def test_a_simulated_operation_starts_when_nothing_binds_it_any_more(timeline):
    bonds = bonds_of(find_operations(timeline))
    assert (bonds.ready_ns == bonds.start_ns[: len(bonds.bound)]).all()
