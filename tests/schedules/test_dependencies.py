"""Tests for the dependency rule."""

from __future__ import annotations

import pytest

from stagescope.schedules import order, simulate
from stagescope.schedules.dependencies import RULES, Need, needs


@pytest.mark.parametrize(
    ("kind", "stage", "expected"),
    [
        ("F", 0, ()),
        ("F", 2, (Need("F", 1),)),
        ("B", 2, (Need("BI", 3), Need("F", 2))),
        ("I", 3, (Need("F", 3),)),
        ("W", 3, (Need("IB", 3),)),
    ],
)
def test_needs_have_no_stage_outside_the_pipeline(kind, stage, expected):
    assert needs(kind, stage, last_stage=3) == expected


@pytest.mark.parametrize("name", ["zb-h1", "interleaved", "dualpipev"])
def test_no_simulated_action_starts_before_its_needs_end(name):
    step = simulate(order(name, ranks=4, microbatches=12))
    ends_ns = {part: timed.end_ns for timed in step.actions for part in timed.action.parts}
    last_stage = max(part.stage for part in ends_ns)
    checked = 0
    for timed in step.actions:
        for part in timed.action.parts:
            for need in needs(part.kind, part.stage, last_stage):
                producers = [(kind, need.stage, part.microbatch, None) for kind in need.kinds]
                assert any(ends_ns.get(each, timed.start_ns + 1) <= timed.start_ns for each in producers)
                checked += 1
    assert checked > len(step.actions)


def test_inputs_from_other_stages_come_first():
    crossing = [rule.crosses_stages for rule in RULES]
    assert crossing == sorted(crossing, reverse=True)
