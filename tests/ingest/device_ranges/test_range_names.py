"""Parsing the names of NVTX ranges."""

import pytest

from stagescope.ingest.annotations.name_pattern import NamePattern
from stagescope.ingest.device_ranges.range_names import RangeMeaning, range_meaning, step_of


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("F1.3 step 2", RangeMeaning("forward", 1, 3, step=2)),
        ("PP:6I3", RangeMeaning("backward_input", 6, 3)),
        ("PP:1SEND_F0", RangeMeaning("send_forward", 1, 0)),
        ("PP:1B2, seq = 17, op_id = 4", RangeMeaning("backward", 1, 2)),
        ("F3.0.17", RangeMeaning("forward", None, 3, 0)),
        ("W3.1.25", RangeMeaning("backward_weight", None, 3, 1)),
        ("backward_12", RangeMeaning("backward", None, 12)),
        ("forward-step", RangeMeaning("forward")),
        ("Optimizer.step#Adam.step", RangeMeaning("optimizer")),
        ("PP:1UNSHARD", None),
        ("PP:(1F6;6B2)OVERLAP_F_B", None),
        ("aten::add, seq = 5", None),
        ("F", None),
        ("iteration 3", None),
    ],
)
def test_range_names_are_parsed(name, meaning):
    assert range_meaning(name) == meaning


def test_the_callers_pattern_takes_precedence():
    pattern = NamePattern("{kind} s{stage} c{chunk} m{microbatch} t{step}")
    assert range_meaning("fwd s4 c1 m2 t9", pattern) == RangeMeaning("forward", 4, 2, 1, 9)
    assert range_meaning("F1.3", pattern) == RangeMeaning("forward", 1, 3)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("iteration 12", 12),
        ("step_3", 3),
        ("ProfilerStep#4", 4),
        ("Train step: 7", 7),
        ("step", None),
        ("substep 1", None),
    ],
)
def test_steps_have_numbers(name, step):
    assert step_of(name) == step
