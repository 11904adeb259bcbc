"""The proposed division of the layers, against runs of the proposal in the independent simulator."""

import numpy as np
import pytest

import stagescope as ss
from stagescope.analysis.prediction.layout_text import layout_line, split_points
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

HEAD_MS = 12.0
LAYER_MS = 2.5


def layer_run(counts, *, head_ms=HEAD_MS, slow=None, seed=0):
    """Return the timeline of a run with these layers per stage, and an output layer on the last one."""
    shape = Shape(ranks=len(counts), microbatches=12, steps=6)
    plan = make_plan(shape, Costs(noise=0.005), seed)
    forward = np.array(counts) * LAYER_MS
    forward[-1] += head_ms
    if slow is not None:
        forward[slow[0]] *= slow[1]
    usual = Costs()
    factor = np.stack([forward * MS / usual.forward, 2 * forward * MS / usual.backward] * 2)
    return timeline_of(simulate(plan.with_actions(plan.action_ns * factor[:, None, None, :, None])))


def layout_of(timeline, layers=()):
    table = ss.analyze(timeline, layers=layers).improvements
    (row,) = [row for row in table.to_dicts() if row["change"].startswith("layers")]
    return row


def iteration_ns(timeline):
    return ss.analyze(timeline).iterations["iteration_ns"].mean()


@pytest.mark.parametrize("slow", [None, (1, 1.2)])
def test_run_of_the_proposed_layout_is_in_the_predicted_range(slow):
    row = layout_of(layer_run([8, 8, 8, 8], slow=slow), layers=32)
    line = row["note"].split("'")[1]
    expected = {None: [9, 9, 9, 5], (1, 1.2): [9, 8, 10, 5]}[slow]
    assert row["note"] == (
        f"Megatron: --pipeline-model-parallel-layout '{layout_line(np.array(expected))}'; "
        f"torch split points: {split_points(np.array(expected))}"
    )
    assert line.startswith("Et*9|")
    really_ns = iteration_ns(layer_run(expected, slow=slow, seed=1))
    assert 0.99 * row["low_step_ns"] <= really_ns <= 1.01 * row["high_step_ns"]


def test_layers_of_unequal_stages_are_given_one_by_one():
    row = layout_of(layer_run([9, 9, 9, 5], head_ms=0), layers=[9, 9, 9, 5])
    assert row["change"] == "layers per stage 8 instead of 9 (3 stages), 5"


def test_number_of_layers_that_does_not_fit_the_stages_is_a_warning():
    report = ss.analyze(layer_run([8, 8, 8, 8]), layers=30)
    assert "layers.mismatch" in [each.code for each in report.diagnostics]
    assert layout_of(layer_run([8, 8, 8, 8]), layers=30)["note"] == "with --layers, the layout is stated"


def test_unknown_number_of_layers_gives_the_share_that_moves():
    row = layout_of(layer_run([8, 8, 8, 8]))
    # Layers of 20 ms per stage and an output layer of 12 ms: all stages take 23 ms if the last one keeps 11 of 20.
    assert row["change"] == "layers moved from stage 3 (-45 %) to stages 0-2 (+15 %)"
    assert row["low_step_ns"] < row["high_step_ns"] < row["measured_step_ns"]


def test_two_stages_share_what_the_longer_one_costs_more():
    row = layout_of(layer_run([8, 8], head_ms=10))
    assert row["change"] == "layers moved from stage 1 (-25 %) to stage 0 (+25 %)"


def test_stage_never_becomes_faster_than_its_output_layer():
    row = layout_of(layer_run([4, 4, 4, 4], head_ms=60))
    assert row["change"] == "layers moved from stage 3 (-100 %) to stages 0-2 (+33 %)"
    output_layer_ns = 12 * 3 * 60 * MS
    assert row["low_step_ns"] >= 0.99 * output_layer_ns


def test_slow_replica_in_too_few_steps_to_be_claimed_moves_no_layers():
    plan = make_plan(Shape(ranks=4, replicas=2, microbatches=8, steps=1), Costs(noise=0.005), 3)
    factor = np.ones(plan.action_ns.shape)
    factor[:, :, 1, 1] = 1.3
    report = ss.analyze(timeline_of(simulate(plan.with_actions(plan.action_ns * factor))))
    assert report.findings.is_empty()
    assert not [each for each in report.improvements["change"] if each.startswith("layers moved")]
