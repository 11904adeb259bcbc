"""Sums of long times do not overflow: with a longer unit of time, every share and culprit stays the same."""

from __future__ import annotations

import polars as pl
import pytest

import stagescope
from truth.causes import Place, slow_rank
from truth.engine import simulate
from truth.plan import Costs, Shape, make_plan
from truth.spans import spans_of

SPANS = spans_of(simulate(slow_rank(make_plan(Shape(replicas=2), Costs(), 0), Place(1), 1.2)))
TIMES = ("start_ns", "end_ns", "wait_start_ns", "wait_end_ns")


def report_of(factor):
    first = pl.lit(SPANS["start_ns"].min())
    spans = SPANS.with_columns((pl.col(name) - first) * factor for name in TIMES)
    return stagescope.analyze(stagescope.Timeline.from_spans(spans))


@pytest.mark.parametrize("factor", [3_000_000, 300_000_000])
def test_culprits_and_shares_of_days_of_idle_time_are_those_of_milliseconds(factor):
    """An iteration takes 13 days, and with the larger factor 3.6 years: 292 years are 2**63 ns, 106 days are of ps."""
    short, long = report_of(1), report_of(factor)
    keys = [name for name in short.culprits.columns if name != "idle_ns"]
    both = short.culprits.join(long.culprits, on=keys, nulls_equal=True, suffix="_long", how="full")
    found = both.filter(pl.col("idle_ns").abs() > 1000)
    assert found["idle_ns_long"].to_list() == pytest.approx((factor * found["idle_ns"]).to_list(), rel=1e-3)
    assert long.bubble.fraction == pytest.approx(short.bubble.fraction)
    assert long.bubble.per_step == pytest.approx(short.bubble.per_step)
    lost, expected = long.explanation.lost_time, short.explanation.lost_time
    assert lost.lost_fraction == pytest.approx(expected.lost_fraction)
    assert lost.mean_ns == pytest.approx(factor * expected.mean_ns)
