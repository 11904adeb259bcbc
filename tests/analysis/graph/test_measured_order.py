from delayed_runs import run
from drawing import timeline_from_text
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.measured_order import measured_order


def written(actions, step=0, pipeline=0):
    return {rank: list(map(str, row)) for rank, row in measured_order(actions, pipeline, step).items()}


def test_order_is_by_start_in_schedule_notation():
    actions = find_actions(timeline_from_text("F0 F1 . . B0 B1\n. F0 F1 I0 I1 W0 W1", step=3))
    assert written(actions, step=3) == {
        0: ["F0.0", "F0.1", "B0.0", "B0.1"],
        1: ["F1.0", "F1.1", "I1.0", "I1.1", "W1.0", "W1.1"],
    }


def test_pair_is_one_action():
    order = {
        0: ["F0.0", "F0.1", "F0.2+B0.0", "B0.1", "B0.2"],
        1: ["F1.0", "B1.0", "F1.1", "B1.1", "F1.2", "B1.2"],
    }
    assert written(find_actions(run(order, lambda action, rank: 10))) == order


def test_unrecorded_step_or_pipeline_has_no_order():
    actions = find_actions(timeline_from_text("F0 B0"))
    assert written(actions, step=1) == written(actions, pipeline=1) == {}
