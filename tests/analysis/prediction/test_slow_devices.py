"""Predictions of another schedule state that a straggler moves with its stage, if it does."""

import pytest

from stagescope.analysis.prediction.slow_devices import SlowDevice, moving_conditions
from stagescope.api import OtherSchedule, analyze, what_if
from stagescope.schedules import order
from truth.causes import Place, slow_rank
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

MOVES, STAYS = ("interleaved", "zb-v"), ("gpipe", "zb-h1")


def conditions(plan):
    """Return the conditions of schedules that move stages, and of those that do not."""
    changes = [OtherSchedule(name) for name in (*MOVES, *STAYS)]
    found = what_if(timeline_of(simulate(plan)), changes).table["condition"].to_list()
    return found[: len(MOVES)], found[len(MOVES) :]


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        (2, "if what makes rank 2 slow moves with its stage"),
        (1, "if the extra time of rank 2 is work that moves with its stage"),
    ],
)
def test_straggler_whose_stage_moves_is_a_condition(replicas, words):
    base = make_plan(Shape(replicas=replicas), Costs(), 0)
    moving, staying = conditions(slow_rank(base, Place(2), 1.3))
    assert all(words in each for each in moving)
    assert not any("rank" in each for each in staying)
    assert not any("rank" in each for part in conditions(base) for each in part)


@pytest.mark.parametrize(
    ("name", "chunks", "moved"),
    [
        ("gpipe", None, set()),
        ("interleaved", 2, {0, 1, 2, 3}),  # stage 0 becomes stages 0 and 1, on ranks 0 and 1
        ("chimera", None, {0, 1, 2, 3}),  # every stage is on a second rank, too
    ],
)
def test_stages_that_another_schedule_runs_elsewhere(name, chunks, moved):
    run = order("1f1b", ranks=4, microbatches=8)
    other = order(name, ranks=4, microbatches=8, **({"chunks": chunks} if chunks else {}))
    found = {
        rank
        for rank in range(4)
        if moving_conditions([SlowDevice(rank, frozenset([rank]), is_certain=True)], run, other)
    }
    assert found == moved


def test_joined_stages_move_unless_their_rank_keeps_them():
    run = order("interleaved", ranks=2, microbatches=4, chunks=2)  # stages 0 and 2, and stages 1 and 3
    other = order("1f1b", ranks=2, microbatches=4)
    devices = [SlowDevice(rank, frozenset([rank, rank + 2]), is_certain=True) for rank in range(2)]
    assert len(moving_conditions(devices, run, other)) == 2


def test_many_devices_are_counted():
    run, other = (order(name, ranks=4, microbatches=8) for name in ("1f1b", "chimera"))
    devices = [SlowDevice(rank, frozenset([rank]), is_certain=True) for rank in range(4)]
    assert moving_conditions(devices, run, other) == ["if what makes 4 ranks slow moves with their stages"]


@pytest.mark.parametrize("factor", [1.012, 1.018])
def test_rank_is_slow_for_predictions_if_it_is_a_finding_of_the_report(factor):
    """Between the windows is more time than in them: half a percent of the iteration is more than of the window."""
    costs = Costs(between=400 * MS, noise=0.003)
    plan = slow_rank(make_plan(Shape(replicas=4, steps=20), costs, 0), Place(1, 1), factor)
    timeline = timeline_of(simulate(plan))
    is_found = "rank.slow" in analyze(timeline).findings["code"].to_list()
    (condition,) = what_if(timeline, OtherSchedule("chimera")).table["condition"]
    assert is_found == (factor == 1.018)
    assert ("if what makes rank 5 slow moves with its stage" in condition) == is_found
