"""A slow link between machines whose clocks are known less well than it is slow is found by both ways together."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from stagescope.analysis import build_explained_report
from stagescope.clocks import align_clocks
from truth.causes import slow_link
from truth.engine import simulate
from truth.plan import DOWN, MS, UP, Costs, Shape, make_plan
from truth.spans import timeline_of

AHEAD_NS = [0, 700_000_000, -300_000_000, 5_000_000]
SLOWER_NS = 4 * MS
TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


def report_of(plan):
    """Return the report of a run in which every stage is on a machine with a clock of its own."""
    timeline = timeline_of(simulate(plan))
    machine = pl.format("m{}", pl.col("pp"))
    ranks = timeline.ranks.with_columns(machine=machine, clock=machine)
    stage = pl.col("rank") % plan.shape.ranks
    ahead = stage.replace_strict(dict(enumerate(AHEAD_NS)), return_dtype=pl.Int64)
    spans = timeline.spans.with_columns(pl.col(name) + ahead for name in TIMES)
    return build_explained_report(align_clocks(replace(timeline.with_spans(spans), ranks=ranks)).timeline)


def links_of(report):
    return report.findings.filter(code="link.slow")["subject"].to_list()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("has_both", [False, True])
def test_slow_link_is_found_with_what_it_costs(replicas, has_both):
    base = make_plan(Shape(replicas=replicas), Costs(), 0)
    plan = slow_link(base, DOWN, 1, SLOWER_NS)
    plan = slow_link(plan, UP, 2, SLOWER_NS) if has_both else plan
    report = report_of(plan)
    assert links_of(report) == ["links between rank 1 and rank 2"]
    (sentence,) = report.findings.filter(code="link.slow")["evidence"]
    assert "Which way is slow is not known" in sentence
    change = "the links between rank 1 and rank 2 as fast as other links"
    (gain_ns,) = report.improvements.filter(change=change)["gain_ns"]
    run = simulate(plan)
    true_ns = run.iteration_ns - simulate(base).iteration_ns
    assert gain_ns == pytest.approx(true_ns, abs=0.01 * run.iteration_ns)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("replicas", [1, 2])
def test_equal_links_are_no_finding(seed, replicas):
    assert links_of(report_of(make_plan(Shape(replicas=replicas), Costs(), seed))) == []
