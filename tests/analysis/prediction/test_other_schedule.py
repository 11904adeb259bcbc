import pytest

from stagescope import schedules
from stagescope.analysis.prediction.mean_costs import HALVED, MeanCosts
from stagescope.analysis.prediction.other_schedule import (
    TWICE,
    MeasuredOrder,
    other_order,
    simulate_mean_saving,
    simulate_saving,
)
from stagescope.schedules.action import parse_action
from stagescope.schedules.memory import peak_in_flight
from stagescope.vocabulary.errors import ScheduleError

UNIT = MeanCosts(
    4,
    {"F": dict.fromkeys(range(4), 10.0), "B": dict.fromkeys(range(4), 20.0)},
    0.0,
    dict.fromkeys(range(3), 0.0),
)


def order(name, microbatches=8):
    return schedules.order(name, ranks=4, microbatches=microbatches)


def test_zb_h1_saves_two_of_three_bubbles_at_unit_cost():
    saving = simulate_saving(order("1f1b"), UNIT, UNIT, "zb-h1")
    # (p-1)(F+B) of 1F1B against (p-1)(F+I-W) of ZB-H1, with I = W = B / 2: 90 against 30.
    assert saving.saved_ns == 60
    assert saving.condition == HALVED
    assert saving.note == "simulated 0.00027 ms, compared with 0.00033 ms for the measured order"


def test_gpipe_saves_nothing_over_1f1b():
    saving = simulate_saving(order("1f1b"), UNIT, UNIT, "gpipe")
    assert (saving.saved_ns, saving.condition) == (0, "")


def test_higher_costs_reduce_the_saving():
    slower = MeanCosts(4, {"F": dict.fromkeys(range(4), 20.0), "B": dict.fromkeys(range(4), 20.0)}, 0.0, {})
    saving = simulate_saving(order("1f1b"), UNIT, slower, "1f1b")
    assert saving.saved_ns == -(8 + 3) * 10


def test_order_that_cannot_be_simulated_has_no_saving_but_a_reason():
    broken = {0: [parse_action("B0.0"), parse_action("F0.0")]}
    saving = simulate_saving(broken, UNIT, UNIT, "gpipe")
    assert saving.saved_ns is None
    assert saving.note.startswith("the measured order cannot be simulated: ")


def test_unmeasured_actions_have_no_saving():
    forwards = MeanCosts(4, {"F": dict.fromkeys(range(4), 10.0)}, 0.0, {})
    saving = simulate_saving(order("1f1b"), forwards, forwards, "gpipe")
    assert saving == (None, "the costs of some of its actions were not measured", "")


def test_other_order_uses_as_many_chunks_as_the_stages_need():
    assert other_order("1f1b", ranks=4, microbatches=8) == order("1f1b")
    assert other_order("interleaved", ranks=4, microbatches=8, stages=16) == schedules.order(
        "interleaved", ranks=4, microbatches=8, chunks=4
    )
    assert other_order("1f1b", ranks=4, microbatches=8, stages=8) == order("1f1b")
    assert max(peak_in_flight(other_order("gpipe", ranks=4, microbatches=8)).values()) == 8


def test_unknown_or_unsupported_schedule_is_an_error():
    with pytest.raises(ScheduleError):
        other_order("nonsense", ranks=4, microbatches=8)
    with pytest.raises(ScheduleError):
        other_order("dualpipe", ranks=3, microbatches=8)


def test_bidirectional_schedule_needs_every_stage_twice():
    saving = simulate_saving(order("1f1b"), UNIT, UNIT, "chimera")
    assert saving.condition == TWICE
    assert simulate_saving(order("chimera"), UNIT, UNIT, "chimera") == (
        0,
        f"simulated {saving.note.split()[1]} ms, compared with {saving.note.split()[1]} ms for the measured order",
        "",
    )


def test_evaluations_gain_nothing_from_another_order_of_backwards():
    evaluation = {
        rank: [each for each in actions if each.kind == "F"] for rank, actions in order("1f1b").items()
    }
    mixed = [MeasuredOrder(order("1f1b"), 0.25), MeasuredOrder(evaluation, 0.75)]
    assert simulate_mean_saving(mixed, UNIT, UNIT, "zb-h1").saved_ns == 60 / 4
