"""The bubble under its four definitions."""

import json

import polars as pl
import pytest

from drawing import timeline_from_text
from stagescope.analysis import build_report, to_json
from stagescope.analysis.bubble import DEFINITIONS
from stagescope.api import simulate as simulate_step
from stagescope.cli.bubble_option import NAMES
from stagescope.model import SPANS, empty_timeline
from stagescope.model.validate import conform
from stagescope.schedules import Costs, order, simulate
from truth.causes import uniform_latency
from truth.engine import simulate as simulate_run
from truth.plan import MS, Shape, make_plan
from truth.plan import Costs as PlanCosts
from truth.spans import timeline_of

# One rank after the other: own spans of 7 and 4 cells in a window of 7.
TWO_STAGES = """
F0 F1 .  B0 -  B1 -
.  F0 B0 -  F1 .  .
"""


def with_optimizer(timeline):
    """Return a run with an optimizer of 20 ns on rank 0 that starts 10 ns after the window."""
    row = {"rank": 0, "lane": "compute", "kind": "optimizer", "step": 0, "start_ns": 80, "end_ns": 100}
    return timeline.with_spans(pl.concat([timeline.spans, conform(pl.DataFrame([row]), SPANS)]))


def test_options_are_the_definitions():
    assert tuple(DEFINITIONS) == NAMES


def test_window_and_compute_time_and_own_span_divide_the_same_idle_time():
    bubble = build_report(timeline_from_text(TWO_STAGES, cell_ns=10)).bubble
    found = {name: each.fraction for name, each in bubble.definitions.items()}
    assert found["window"] == bubble.fraction == pytest.approx(4 / 14)
    assert found["ideal-ratio"] == pytest.approx(4 / 10)
    assert found["own-span"] == pytest.approx(4 / 14)
    assert bubble.of("ideal-ratio").per_rank == {0: pytest.approx(1 / 6), 1: pytest.approx(3 / 4)}


def test_iteration_includes_what_follows_the_window_and_counts_its_compute_as_busy():
    bubble = build_report(with_optimizer(timeline_from_text(TWO_STAGES, cell_ns=10))).bubble.of("iteration")
    assert bubble.per_rank == {0: pytest.approx(1 - 80 / 100), 1: pytest.approx(1 - 40 / 100)}
    assert bubble.fraction == pytest.approx((20 + 60) / 200)
    assert bubble.per_step == {0: pytest.approx(80 / 200)}
    assert bubble.denominator.startswith("iteration: ")


@pytest.mark.parametrize(("ranks", "microbatches"), [(4, 8), (3, 5), (2, 16)])
def test_ideal_ratio_of_equal_stages_is_that_of_the_papers(ranks, microbatches):
    costs = PlanCosts(latency=0, occupancy=0, launch=0, optimizer=0, noise=0.0, message_noise=0.0)
    plan = uniform_latency(make_plan(Shape(ranks=ranks, microbatches=microbatches), costs), 0)
    bubble = build_report(timeline_of(simulate_run(plan))).bubble
    assert bubble.of("ideal-ratio").fraction == pytest.approx((ranks - 1) / microbatches)
    assert bubble.fraction == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


def test_iteration_has_the_idle_time_of_the_simulated_ranks():
    plan = make_plan(Shape(replicas=2), PlanCosts(reduce=40 * MS, optimizer=0, between=0))
    run = simulate_run(plan)
    bubble = build_report(timeline_of(run)).bubble.of("iteration")
    truth = run.idle_ns().mean() / run.iteration_ns
    assert bubble.fraction == pytest.approx(truth, rel=0.02)


def test_own_span_is_that_of_the_simulation():
    planned = simulate(order("zb-h2", ranks=4, microbatches=9), Costs(forward=10, backward=20))
    timeline = simulate_step("zb-h2", ranks=4, microbatches=9, costs=Costs(forward=10, backward=20)).timeline
    bubble = build_report(timeline).bubble.of("own-span")
    assert bubble.fraction == pytest.approx(planned.own_span_bubble_fraction)


def test_json_has_every_definition_with_its_denominator():
    report = build_report(timeline_from_text(TWO_STAGES, cell_ns=10))
    found = json.loads(json.dumps(to_json(report)))["bubble"]["definitions"]
    assert {name: each["denominator"] for name, each in found.items()} == {
        name: definition.denominator for name, definition in DEFINITIONS.items()
    }
    assert found["ideal-ratio"]["per_rank"] == {"0": pytest.approx(1 / 6), "1": pytest.approx(3 / 4)}


def test_run_without_steps_has_no_bubble_of_any_definition():
    bubble = build_report(empty_timeline()).bubble
    assert {each.fraction for each in bubble.definitions.values()} == {None}


def test_unknown_definition_is_a_key_error():
    with pytest.raises(KeyError):
        build_report(empty_timeline()).bubble.of("busy")
