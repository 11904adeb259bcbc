"""Causes that are removed first or last, against the independent simulator, which can leave out either of two."""

import pytest

import stagescope as ss
from stagescope.analysis.iteration.last_pipeline import removal_order_text
from truth.causes import equal_stages, slow_stages, unequal_microbatches
from truth.engine import simulate
from truth.plan import Costs, Shape, make_plan
from truth.spans import timeline_of

LONGER = {3: 1.4}


def losses_of(plan):
    losses = ss.analyze(timeline_of(simulate(plan))).losses
    return {row["part"]: row for row in losses.to_dicts()}, losses


def test_parts_of_interacting_causes_range_from_removed_first_to_removed_last():
    base = make_plan(Shape(microbatches=8, steps=6), Costs(noise=0.005), 2)
    uneven, unequal = slow_stages(base, LONGER), unequal_microbatches(equal_stages(base, LONGER), 0.5, 4)
    both = unequal_microbatches(uneven, 0.5, 4)
    all_ns, neither_ns, uneven_ns, unequal_ns = (
        simulate(plan).iteration_ns for plan in (both, equal_stages(base, LONGER), uneven, unequal)
    )
    orders = {
        "data_imbalance": (all_ns - uneven_ns, unequal_ns - neither_ns),
        "stage_imbalance": (all_ns - unequal_ns, uneven_ns - neither_ns),
    }
    parts, losses = losses_of(both)
    for name, expected in orders.items():
        row = parts[name]
        assert (row["low_ns"], row["high_ns"]) == pytest.approx(
            (min(expected), max(expected)), abs=0.015 * all_ns
        )
        assert row["low_ns"] <= row["ns"] <= row["high_ns"]
    assert removal_order_text(losses).startswith("Causes interact: depending on which is removed first, ")


def test_single_cause_has_no_range():
    parts, losses = losses_of(slow_stages(make_plan(Shape(steps=4), Costs(noise=0)), LONGER))
    assert all(
        row["low_ns"] == row["ns"] == row["high_ns"] for row in parts.values() if row["ns"] is not None
    )
    assert removal_order_text(losses) == ""
