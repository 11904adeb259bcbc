"""The table of Paddle's job types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagescope.ingest.paddle.job_types import KINDS, ONCE, UNKNOWN, JobType, describe_job, span_name
from stagescope.vocabulary.kinds import BY_NAME, LANES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("forward", JobType("forward", "compute", 0)),
        ("forward3", JobType("forward", "compute", 3)),
        ("backward", JobType("backward", "compute", 0)),
        ("backward1", JobType("backward", "compute", 1)),
        ("backward_b", JobType("backward_input", "compute", 0)),
        ("backward_b0", JobType("backward_input", "compute", 0)),
        ("backward_w1", JobType("backward_weight", "compute", 1)),
        ("backward_w1_reduce", JobType("backward_weight", "compute", 1)),
        ("recv_forward", JobType("recv_forward", "comm", 0)),
        ("recv_forward2", JobType("recv_forward", "comm", 2)),
        ("send_backward1", JobType("send_backward", "comm", 1)),
        ("optimizer", JobType("optimizer", "compute", once=True)),
        ("optimize", JobType("optimizer", "compute", once=True)),
        ("default", JobType("other", "compute", once=True)),
        ("lr", JobType("other", "host", once=True)),
        ("startup", JobType("other", "host", once=True)),
    ],
)
def test_every_job_type_of_the_passes_has_kind_lane_and_chunk(text, expected):
    assert describe_job(text) == expected


def test_the_number_in_parentheses_is_a_piece_instead_of_a_chunk():
    assert describe_job("backward(chunk2)") == JobType("backward", "compute", chunk=0, piece=2)


@pytest.mark.parametrize(
    "text", ["", "forwards", "forward-1", "forward1x", "backward_b(chunk)", "forward99999"]
)
def test_unknown_types_keep_their_name(text):
    assert describe_job(text) == UNKNOWN
    assert span_name(text) == text


@given(st.text(max_size=20))
def test_any_text_maps_to_a_known_kind_and_lane(text):
    described = describe_job(text)
    assert described.kind in BY_NAME
    assert described.lane in LANES


def test_a_span_has_a_name_only_if_it_differs_from_the_kind():
    assert [span_name(text) for text in ("forward", "forward0", "backward_b", "optimizer", "optimize")] == [
        None, "forward0", "backward_b", None, "optimize",
    ]  # fmt: skip
    assert {span_name(text) for text in {*KINDS, *ONCE}} >= {None, "backward_w", "lr"}
