"""Reading one complete trace."""

import pytest

from ingest.kineto.planted_traces import BASE_NS, backward_operator, flow, in_us, mark, operator, write_trace
from stagescope.ingest.kineto.rank_trace import ACTION_SCHEMA, OPERATORS, TRANSFER_SCHEMA, read_rank
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limits_in_force


@pytest.fixture
def read(tmp_path):
    def read(*events, pattern=None, **facts):
        return read_rank(write_trace(tmp_path / "rank0.json", events, **facts), pattern)

    return read


def test_an_annotated_trace_has_actions_with_steps_and_receive_waits(read):
    found = read(
        mark("ProfilerStep#3", 0, 2000),
        mark("PP:1F0", 0, 100),
        operator("aten::mm", 0, 100),
        mark("PP:1RECV_F1", 110, 120),
        mark("gloo:recv", 115, 300),
        mark("PP:1F1", 130, 400),
        operator("aten::mm", 300, 400),
    )
    assert in_us(found.actions, "stage", "microbatch", "step") == [
        ("forward", 0, 100, 1, 0, 3), ("forward", 300, 400, 1, 1, 3),
    ]  # fmt: skip
    (wait,) = found.transfers.to_dicts()
    assert (wait["wait_start_ns"] - BASE_NS, wait["wait_end_ns"] - BASE_NS) == (115_000, 300_000)
    assert found.steps["step"].to_list() == [3]
    assert (found.inferred_from, found.diagnostics) == (None, [])
    assert dict(found.actions.schema) == {name: kind() for name, kind in ACTION_SCHEMA.items()}
    assert dict(found.transfers.schema) == {name: kind() for name, kind in TRANSFER_SCHEMA.items()}


def test_inferred_actions_are_numbered_in_each_step(read):
    step = [operator("aten::mm", 0, 100), backward_operator(110, 200), *flow(1, 10, 120)]
    again = [{**one, "ts": one["ts"] + 1000} for one in step]
    optimizer = [mark("Optimizer.step#SGD.step", at, at + 10) for at in (300, 1300)]
    found = read(*step, *again, *optimizer)
    rows = (
        found.actions.filter(found.actions["kind"] != "optimizer").select("kind", "microbatch", "step").rows()
    )
    assert sorted(rows) == [("backward", 0, 0), ("backward", 0, 1), ("forward", 0, 0), ("forward", 0, 1)]
    assert found.inferred_from == OPERATORS


def test_a_trace_that_begins_in_the_middle_of_a_step_has_a_warning(read):
    found = read(operator("aten::mm", 0, 100), backward_operator(110, 200), *flow(1, 10, 120),
                 operator("c10d::send", 200, 210), backward_operator(220, 300), *flow(2, -9, 230))  # fmt: skip
    (note,) = (row for row in found.diagnostics if row.severity == "warning")
    assert (note.severity, note.count) == ("warning", 1)
    assert "begins in the middle of a step" in note.message


def test_an_unrelated_trace_has_no_actions(read):
    found = read(operator("aten::mm", 0, 100), mark("epoch", 0, 100))
    assert found.actions.is_empty()
    assert found.transfers.is_empty()


def test_an_annotation_that_lists_more_actions_than_any_schedule_overlaps_is_refused(read):
    listed = mark(f"PP:({';'.join(f'0F{number}' for number in range(17))})OVERLAP_F_B", 0, 100)
    with pytest.raises(
        InputError, match="the number of actions in one annotation is 17, more than the limit of 16"
    ) as error:
        read(listed)
    assert "--limit overlapped=17" in error.value.hint
    with limits_in_force({"overlapped": 17}):
        assert read(listed).actions.height == 17
