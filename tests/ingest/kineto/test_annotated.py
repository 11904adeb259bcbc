"""Actions and transfers of annotations."""

import pytest

from ingest.kineto.planted_traces import backward_operator, in_us, mark, operator, tables_of
from stagescope.ingest.kineto.annotated import annotated_spans, named_marks


@pytest.fixture
def spans(tmp_path):
    def spans(*events, pattern=None):
        tables = tables_of(tmp_path, events)
        return annotated_spans(tables, named_marks(tables["annotations"], pattern))

    return spans


def test_the_wait_for_its_input_is_excluded_from_an_action(spans):
    found = spans(
        mark("PP:1RECV_F0", 0, 10),
        mark("gloo:recv", 5, 500),
        mark("PP:1F0", 20, 1020),
        operator("aten::mm", 520, 1000),
    )
    assert in_us(found.actions, "stage", "microbatch") == [("forward", 510, 1010, 1, 0)]
    assert in_us(found.transfers, "stage", "microbatch") == [("recv_forward", 5, 500, 1, 0)]
    assert found.actions["edge_error_ns"].to_list() == [10_000]


def test_an_action_waits_for_the_receive_of_its_own_step(spans):
    events = []
    for since in (0, 10_000):
        events += [
            mark("PP:1RECV_F0", since, since + 10),
            mark("gloo:recv", since + 5, since + 500),
            mark("PP:1F0", since + 20, since + 1000),
            operator("aten::mm", since + 500, since + 1000),
        ]
    assert in_us(spans(*events).actions) == [("forward", 500, 1000), ("forward", 10_500, 11_000)]


def test_a_receive_that_ended_earlier_excludes_nothing(spans):
    found = spans(
        mark("PP:1RECV_F0", 0, 10),
        mark("gloo:recv", 5, 15),
        mark("PP:1F0", 20, 100),
        operator("aten::mm", 20, 100),
    )
    assert in_us(found.actions) == [("forward", 20, 100)]


def test_a_gpipe_action_is_between_its_receive_and_its_send(spans):
    found = spans(
        mark("Forward 3", 0, 1000),
        mark("gloo:recv", 5, 300),
        operator("aten::mm", 300, 800),
        operator("c10d::send", 800, 900),
        mark("gloo:send", 850, 5000),
    )
    assert in_us(found.actions, "microbatch") == [("forward", 300, 800, 3)]
    assert in_us(found.transfers, "microbatch") == [
        ("recv_forward", 5, 300, 3),
        ("send_forward", 850, 5000, 3),
    ]


def test_an_overlapped_pair_is_split_where_the_loss_gradient_is_created(spans):
    found = spans(
        mark("PP:(0F7;7B3)OVERLAP_F_B", 0, 1000),
        operator("aten::mm", 0, 400),
        operator("aten::ones_like", 420, 430),
        backward_operator(500, 1000),
    )
    assert [row[:1] + row[3:] for row in in_us(found.actions, "stage", "microbatch")] == [
        ("forward", 0, 7), ("backward", 7, 3),
    ]  # fmt: skip
    forward, backward = in_us(found.actions)
    assert forward[2] == pytest.approx(410)
    assert 410 <= backward[1] <= 420
    assert (found.unsplit, found.actions["pair"].n_unique()) == (0, 1)


def test_a_pair_without_operators_is_two_simultaneous_actions_and_counted(spans):
    found = spans(mark("PP:(0F7;7B3)OVERLAP_F_B", 0, 1000))
    assert [row[0] for row in in_us(found.actions)] == ["forward", "backward"]
    assert found.actions["end_ns"].n_unique() == 1
    assert found.unsplit == 1


def test_the_loss_in_a_forward_becomes_a_separate_span(spans):
    found = spans(
        mark("PP:3F0", 0, 1000),
        operator("aten::mm", 0, 600),
        operator("aten::broadcast_tensors", 600, 610),
        operator("aten::mse_loss", 650, 990),
    )
    assert in_us(found.actions) == [("forward", 0, 600), ("loss", 600, 1000)]


def test_mirror_names_are_exact_and_replace_those_of_torch(spans):
    found = spans(mark("PP:1F0", 0, 100), mark("F1.0 step 7", 30, 90), operator("aten::mm", 50, 60))
    assert in_us(found.actions, "step") == [("forward", 30, 90, 7)]
    assert found.actions["edge_error_ns"].to_list() == [0]


def test_names_that_match_the_pattern_are_actions(spans):
    found = spans(mark("fwd mb 4", 0, 100), pattern="{kind} mb {microbatch}")
    assert in_us(found.actions, "microbatch") == [("forward", 0, 100, 4)]
