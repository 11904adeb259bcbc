"""The ledger knows which rank, link and action each cause comes from."""

import polars as pl
import pytest

from random_pipelines import timeline_of as timeline_of_rows
from stagescope.analysis.intermediates import intermediates_of
from truth.causes import Excess, Place, loading, slow_actions, slow_link, slow_rank, slow_stages
from truth.engine import simulate
from truth.orders import SCHEDULES
from truth.plan import DOWN, MS, Costs, Shape, make_plan
from truth.spans import timeline_of

SINGLE, TWO = make_plan(Shape(steps=3), Costs(), 1), make_plan(Shape(steps=3, replicas=2), Costs(), 1)


def ledger_of(plan):
    return intermediates_of(timeline_of(simulate(plan))).ledger


def largest(ledger, cause):
    """Return rank, peer, stage and kind that add most by a cause, and their part of what the cause adds."""
    found = (
        ledger.origins.filter(cause=cause).group_by("rank", "peer", "stage", "kind").agg(pl.sum("added_ns"))
    )
    row = found.sort("added_ns").row(-1, named=True)
    part = row.pop("added_ns") / ledger.steps[f"{cause}_ns"].sum()
    return tuple(row.values()), part


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "zb-v", "dualpipev"])
def test_origins_of_a_cause_sum_to_the_cause(schedule):
    chunks = 1 if schedule in ("1f1b", "zb-h1") else 2
    assert schedule in SCHEDULES
    plan = make_plan(Shape(schedule, steps=3, replicas=2, chunks=chunks), Costs(), 1)
    ledger = ledger_of(slow_rank(plan, Place(1, 1), 1.2))
    found = ledger.origins.group_by("pipeline", "step", "cause").agg(pl.sum("added_ns"))
    parts = ledger.steps.unpivot(
        index=["pipeline", "step"], on=pl.selectors.ends_with("_ns"), variable_name="cause"
    )
    joined = found.with_columns(cause=pl.col("cause").cast(pl.String) + "_ns").join(
        parts, on=["pipeline", "step", "cause"]
    )
    assert {"straggler_ns", "jitter_ns"} < set(joined["cause"])
    whole = joined.group_by("cause").agg(pl.sum("added_ns", "value"))
    assert whole["added_ns"].to_list() == pytest.approx(whole["value"].to_list(), rel=0.05, abs=1e5)


def test_straggler_comes_from_the_slow_rank():
    ledger = ledger_of(slow_rank(TWO, Place(1, 1), 1.2))
    by_rank = (
        ledger.origins.filter(cause="straggler").group_by("rank").agg(pl.sum("added_ns")).sort("added_ns")
    )
    assert by_rank["rank"][-1] == 5
    assert by_rank["added_ns"][-1] == pytest.approx(ledger.steps["straggler_ns"].sum(), rel=0.05)


def test_stage_imbalance_comes_from_the_slow_stage():
    (rank, peer, stage, _), _ = largest(ledger_of(slow_stages(SINGLE, {3: 1.3})), "stage_imbalance")
    assert (rank, peer, stage) == (3, None, 3)


def test_jitter_comes_from_the_slow_action():
    found, part = largest(ledger_of(slow_actions(SINGLE, [Excess(1, 0, 2, 4, 1_000 * MS)])), "jitter")
    assert found == (2, None, 2, "forward")
    assert part == pytest.approx(1, rel=0.02)


def test_exposed_communication_comes_from_the_slow_link():
    (rank, peer, stage, kind), _ = largest(
        ledger_of(slow_link(SINGLE, DOWN, 1, 4 * MS)), "exposed_communication"
    )
    assert (rank, peer, stage, kind) == (1, 2, 2, "forward")


@pytest.mark.parametrize(("recorded", "cause"), [(True, "data_loading"), (False, "unattributed")])
def test_loading_comes_from_the_rank_that_loads_even_if_it_is_not_recorded(recorded, cause):
    found, part = largest(ledger_of(loading(SINGLE, per_microbatch_ns=15 * MS, recorded=recorded)), cause)
    assert found == (0, None, 0, "forward")
    assert part == pytest.approx(1, rel=0.01)


def test_delays_after_unrecorded_transfers_have_no_origin():
    timeline = timeline_of(simulate(slow_link(SINGLE, DOWN, 1, 4 * MS)))
    compute = timeline.with_spans(timeline.spans.filter(pl.col("lane") == "compute"))
    ledger = intermediates_of(compute).ledger
    assert ledger.steps["unattributed_ns"].sum() > 0
    assert ledger.origins.filter((pl.col("cause") == "unattributed") & (pl.col("rank") > 0)).is_empty()


def test_origin_of_a_blocked_send_is_the_slow_receiver():
    base = make_plan(Shape("interleaved", steps=3, chunks=2), Costs(), 1).with_network(
        blocking=True, buffers=1
    )
    ledger = ledger_of(slow_stages(base, {2: 1.5, 6: 1.5}))
    found = ledger.origins.filter(cause="blocked_on_send").group_by("rank").agg(pl.sum("added_ns"))
    assert found.sort("added_ns")["rank"][-1] == 2


def test_reduction_without_a_message_comes_from_the_action_before_it():
    """Actions that occur twice in a step, as without numbers of steps, depend on nothing."""
    rows = [("compute", kind, start, start + 9) for start, kind in ((0, "forward"), (10, "backward"))]
    rows.append(("comm", "grad_reduce", 20, 50))
    names = ("lane", "kind", "start_ns", "end_ns")
    spans = [
        {"rank": 0, "step": 0, "stage": 0, "microbatch": None if lane == "comm" else 0}
        | dict(zip(names, (lane, kind, (start + at) * MS, (end + at) * MS), strict=True))
        for at in (0, 100)
        for lane, kind, start, end in rows
    ]
    found = intermediates_of(timeline_of_rows(spans, 1)).ledger.origins.filter(cause="gradient_reduction")
    assert found.select("rank", "stage", "kind").rows() == [(0, 0, "backward")]
