"""A rank that loads data before its first receive is the cause of what its neighbors are blocked in sends."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from stagescope.analysis import build_explained_report
from stagescope.vocabulary.causes import CAUSE_COLUMNS
from truth.causes import loading
from truth.engine import simulate
from truth.plan import MS, Costs, Shape, make_plan
from truth.spans import timeline_of


@pytest.mark.parametrize("blocking", [True, False])
def test_loading_of_a_late_rank_is_not_the_time_of_sends_to_it(blocking):
    base = make_plan(Shape("gpipe", steps=5), Costs(noise=0.0), 0)
    base = base.with_network(blocking=blocking, rendezvous=blocking)
    run = simulate(replace(loading(base, per_step_ns=80 * MS, recorded=True), loader=2))
    report = build_explained_report(timeline_of(run))
    cost_ns = run.iteration_ns - simulate(base).iteration_ns
    losses = dict(report.losses.select("part", "ns").iter_rows())
    assert losses["data_loading"] == pytest.approx(cost_ns, abs=MS)
    assert "data loading (rank 2)" in report.verdict.why
    assert report.ledger.select(
        (pl.sum_horizontal("ideal_work_ns", *CAUSE_COLUMNS) == pl.col("window_ns")).all()
    ).item()
    idle = report.idle.with_columns(ns=pl.col("end_ns") - pl.col("start_ns"))
    others = ["exposed_communication", "blocked_on_send", "unattributed"]
    assert idle.filter(pl.col("ns") > 10 * MS, pl.col("cause").is_in(others)).is_empty()
    late = idle.filter(rank=2, position="leading").filter(pl.col("cause") == "data_loading")
    assert late["culprit_rank"].unique().to_list() == [2]
    (loaded,) = report.improvements.filter(change="data of rank 2 loaded ahead of time")["gain_ns"]
    assert loaded == pytest.approx(cost_ns, abs=MS)
    assert report.improvements["change"][0] == "data of rank 2 loaded ahead of time"
    culprits = report.culprits.filter(cause="data_loading", victim_rank=0)
    assert culprits["culprit_rank"].to_list() == [2]
    assert culprits["idle_ns"].sum() == pytest.approx(cost_ns, abs=MS)
