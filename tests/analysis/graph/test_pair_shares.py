"""Shares of the actions of overlapped pairs."""

from __future__ import annotations

import polars as pl
import pytest

from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.graph.pair_shares import share_pairs
from stagescope.analysis.prediction.changes import Slower
from stagescope.analysis.prediction.what_if import predict_steps
from truth.causes import slow_stages
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of


def long_stage(factor):
    plan = make_plan(Shape("dualpipev", microbatches=10, steps=3, chunks=2), Costs(noise=0), 3)
    return simulate(slow_stages(plan, {3: factor}))


def test_shares_are_those_of_the_times_alone():
    actions = find_actions(timeline_of(long_stage(1.3)))
    partners = actions.partners
    first = actions.table.select("stage", "kind")[partners["action"]]
    forward_of_3 = (first["stage"] == 3) & (partners["stage"] == 4)
    backward_of_3 = (first["stage"] == 4) & (partners["stage"] == 3)
    shares = share_pairs(actions)
    # A backward takes twice as long as a forward.
    assert shares[forward_of_3.to_numpy()] == pytest.approx(1.3 / 3.3, abs=1e-3)
    assert shares[backward_of_3.to_numpy()] == pytest.approx(1 / 3.6, abs=1e-3)
    assert shares[(first["stage"] < 3).to_numpy()] == pytest.approx(1 / 3, abs=1e-3)


def test_prediction_for_one_stage_of_a_pair_is_the_run_with_that_stage():
    slow, usual = long_stage(1.3), long_stage(1.0)
    (row,) = predict_steps(
        find_actions(timeline_of(slow)), [(Slower(stage=3, factor=1 / 1.3),)]
    ).table.to_dicts()
    window_ms = (usual.end.max(axis=1) - usual.start.min(axis=1)).mean() / MS
    assert row["gain_ns"] > 10 * MS
    assert row["predicted_step_ns"] / MS == pytest.approx(window_ms, abs=0.5)


def test_action_that_never_runs_alone_has_half_of_its_pairs():
    timeline = timeline_of(long_stage(1.3))
    pairs = timeline.with_spans(timeline.spans.filter(pl.col("pair").is_not_null()))
    assert (share_pairs(find_actions(pairs)) == 0.5).all()
