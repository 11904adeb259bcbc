"""The costs of actions are what the ledger replays, and show what is usual without any replay."""

import pytest
from polars.testing import assert_frame_equal

from planted_runs import Shape, random_times, run
from stagescope.analysis import intermediates
from stagescope.analysis.idle.action_costs import find_action_costs
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.step_results import usual_durations


@pytest.fixture(scope="module")
def timeline():
    return run(random_times(Shape(pipelines=2, steps=6)))


def test_what_is_usual_is_learned_without_a_replay(timeline, monkeypatch):
    def replay(*_arguments, **_more):
        pytest.fail("replayed")

    monkeypatch.setattr(intermediates, "build_ledger", replay)
    known = intermediates_of(timeline)
    assert known.learned.causes is known.costs.usual
    assert not usual_durations(known, range(6)).classes.is_empty()


def test_ledger_of_given_costs_is_the_one_that_finds_them(timeline):
    known = intermediates_of(timeline)
    costs = find_action_costs(known.actions, known.basis, timeline.spans)
    ledger = build_ledger(known.actions, known.basis, costs=costs, with_origins=True)
    expected = build_ledger(known.actions, known.basis, timeline.spans, with_origins=True)
    assert ledger.delays is costs.delays
    for name in ("steps", "ranks", "losses", "origins", "orders"):
        assert_frame_equal(getattr(ledger, name), getattr(expected, name))
