"""Parsing annotation names."""

import pytest

from stagescope.ingest.annotations.names import meanings, pattern_meanings, step_number


def fields(name):
    return [(one.kind, one.stage, one.microbatch, one.step) for one in meanings(name)]


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("PP:1F0", [("forward", 1, 0, None)]),
        ("PP:6I3", [("backward_input", 6, 3, None)]),
        ("PP:6W3", [("backward_weight", 6, 3, None)]),
        ("PP:1SEND_F10", [("send_forward", 1, 10, None)]),
        ("PP:1RECV_B2", [("recv_backward", 1, 2, None)]),
        ("PP:4UNSHARD", [("other", 4, None, None)]),
        ("PP:0REDUCE_GRAD", [("grad_reduce", 0, None, None)]),
        ("PP:(1F6;6B2)OVERLAP_F_B", [("forward", 1, 6, None), ("backward", 6, 2, None)]),
        ("Forward 3", [("forward", None, 3, None)]),
        ("Backward 12", [("backward", None, 12, None)]),
        ("F1.3 step 2", [("forward", 1, 3, 2)]),
        ("B.3", [("backward", None, 3, None)]),
        ("optimizer step 4", [("optimizer", None, None, 4)]),
        ("Optimizer.step#Adam.step", [("optimizer", None, None, None)]),
        ("Optimizer.zero_grad#Adam.zero_grad", []),
        ("forward", []),
        ("F1", []),
        ("PP:nonsense", []),
        ("Forward 99999999999999999999", [("forward", None, None, None)]),
    ],
)
def test_annotation_names_are_parsed(name, meaning):
    assert fields(name) == meaning


def test_the_callers_pattern_extends_the_known_names():
    find = pattern_meanings("stage{stage} {kind} mb{microbatch}")
    assert [(one.kind, one.stage, one.microbatch) for one in find("stage2 fwd mb7")] == [("forward", 2, 7)]
    assert [one.kind for one in find("PP:1F0")] == ["forward"]


def test_profiler_steps_have_numbers():
    assert [step_number(name) for name in ("ProfilerStep#12", "ProfilerStep*", "Step#1")] == [12, None, None]
