"""Losses: what a step would have saved without its slow ranks and stages."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings

from random_pipelines import arbitrary_timelines, simulated_timelines
from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.ledger import build_ledger
from stagescope.vocabulary.causes import CAUSE_COLUMNS
from truth.causes import Place, equal_stages, slow_rank, slow_stages
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of

PARTS = ["ideal_work_ns", *CAUSE_COLUMNS]


def ledger_of(timeline):
    return build_ledger(find_actions(timeline), with_origins=True)


def windows_ms(run):
    """Return the mean length of the longest window of every step."""
    return (run.end.max(axis=1) - run.start.min(axis=1)).max(axis=1).mean() / MS


def loss_ms(plan, cause):
    losses = ledger_of(timeline_of(simulate(plan))).losses
    longest = losses.sort("window_ns").group_by("step").last()
    return longest[f"{cause}_ns"].mean() / MS


@settings(deadline=None, max_examples=20)
@given(simulated_timelines() | arbitrary_timelines())
def test_losses_sum_to_the_window(timeline):
    ledger = ledger_of(timeline)
    assert ledger.losses.schema == ledger.steps.schema
    assert ledger.losses.select(pl.sum_horizontal(PARTS) == pl.col("window_ns")).to_series().all()


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "dualpipev"])
def test_loss_of_a_slow_rank_is_what_the_window_is_shorter_by_without_it(schedule):
    chunks = 2 if schedule in ("interleaved", "dualpipev") else 1
    base = make_plan(Shape(schedule, replicas=2, steps=4, chunks=chunks), Costs(), 7)
    slow = slow_rank(base, Place(1, 1), 1.2)
    lost_ms = windows_ms(simulate(slow)) - windows_ms(simulate(base))
    assert loss_ms(slow, "straggler") == pytest.approx(lost_ms, abs=1.0)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_loss_of_a_long_stage_is_what_the_window_is_shorter_by_without_it(schedule):
    chunks = 2 if schedule == "dualpipev" else 1
    base = make_plan(Shape(schedule, microbatches=10, steps=4, chunks=chunks), Costs(), 7)
    longer = {3: 1.3}
    lost_ms = windows_ms(simulate(slow_stages(base, longer))) - windows_ms(
        simulate(equal_stages(base, longer))
    )
    assert loss_ms(slow_stages(base, longer), "stage_imbalance") == pytest.approx(lost_ms, abs=1.0)
