"""Fields of marks, and which marks are actions."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_profiles import Cluster, edit, write_cluster
from stagescope.ingest.ascend.markers import (
    MarkFields,
    parse_message,
    read_marks,
    read_object,
    read_step_times,
    with_steps,
    without_nested,
)
from stagescope.ingest.ascend.pipeline_info import RAW_ACTIONS
from stagescope.ingest.database import Database


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("{'name': 'forward_step', 'current_microbatch': 3}", MarkFields("forward", "forward_step", 3)),
        ('{"name": "forward_step", "current_microbatch": 3}', MarkFields("forward", "forward_step", 3)),
        ("forward_step", MarkFields("forward", "forward_step")),
        ("forward_step_no_model_graph", MarkFields("forward", "forward_step_no_model_graph")),
        ("{'name': 'forward_step_with_model_graph'}", MarkFields("forward", "forward_step_with_model_graph")),
        ("backward_step", MarkFields("backward", "backward_step")),
        ("backward_step_with_model_graph", MarkFields("backward", "backward_step_with_model_graph")),
        ("forward_backward_overlaping", MarkFields("overlap", "forward_backward_overlaping")),
        ("forward_backward_overlapping", MarkFields("overlap", "forward_backward_overlapping")),
        ("forward_backward_overlapped", MarkFields("overlap", "forward_backward_overlapped")),
        ("WeightGradStore.pop", MarkFields("weight", "WeightGradStore.pop")),
        ("WeightGradStore_pop", MarkFields("weight", "WeightGradStore_pop")),
        ("{'name': 'forward_step', 'model_chunk_id': 1}", MarkFields("forward", "forward_step", None, 1)),
        ("dataloader fast-forward", MarkFields(None, "dataloader fast-forward")),
        ("forward_step_helper", MarkFields(None, "forward_step_helper")),
        ("{'name': 'forward_step'", MarkFields(None, "{'name': 'forward_step'")),
        ("{'name': 'forward_step', 'current_microbatch': 'x'}", MarkFields("forward", "forward_step")),
        ("{'name': 'forward_step', 'current_microbatch': True}", MarkFields("forward", "forward_step")),
    ],
)
def test_a_message_is_parsed_into_action_and_numbers(text, fields):
    assert parse_message(text) == fields


@given(st.text(max_size=60))
def test_no_text_is_executed_or_breaks_the_reader(text):
    assert isinstance(read_object(text), dict)
    assert isinstance(read_object("{" + text), dict)
    assert isinstance(parse_message(text), MarkFields)


def test_a_call_in_a_message_is_not_made():
    assert read_object("{'name': __import__('os').getcwd()}") == {}


def marks(path):
    with Database(path) as database:
        return read_marks(database, 0), read_step_times(database, 0)


@pytest.fixture
def path(tmp_path):
    return write_cluster(tmp_path, Cluster(pp=1, microbatches=2, steps=1, numbered=True)).databases[0]


def test_actions_have_the_times_of_their_tasks_and_the_fields_of_their_marks(path):
    actions = marks(path)[0].actions
    assert actions.columns == [*RAW_ACTIONS, "host_start_ns", "host_end_ns"]
    assert sorted(actions.select("marker", "message", "recorded_microbatch").rows(), key=str) == [
        ("backward", "backward_step", None),
        ("backward", "backward_step", None),
        ("forward", "forward_step", 0),
        ("forward", "forward_step", 1),
    ]
    assert (actions["host_start_ns"] < actions["start_ns"]).all()


def test_a_mark_with_two_tasks_lasts_from_the_first_to_the_last(path):
    before = marks(path)[0].actions.sort("start_ns").row(0, named=True)
    edit(
        path,
        "INSERT INTO TASK SELECT startNs - 5, startNs + 5, deviceId, connectionId, 1, globalPid, taskType, contextId, "
        "streamId, taskId, modelId FROM TASK ORDER BY startNs LIMIT 1",
    )
    after = marks(path)[0].actions.sort("start_ns").row(0, named=True)
    assert (after["start_ns"], after["end_ns"]) == (before["start_ns"] - 5, before["end_ns"])
    assert marks(path)[0].actions.height == 4


def test_steps_are_read_if_present(path):
    assert marks(path)[1]["step"].to_list() == [0]
    edit(path, "DROP TABLE STEP_TIME")
    found, steps = marks(path)
    assert steps.is_empty()
    assert found.notes == []


def actions(*rows):
    columns = ("rank", "start_ns", "end_ns", "host_start_ns", "host_end_ns")
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.Int64), orient="row").with_columns(
        pl.col("rank").cast(pl.Int32)
    )


def test_a_mark_inside_another_on_host_and_device_is_nested():
    outer, inner, second = (0, 10, 50, 0, 40), (0, 12, 20, 2, 10), (0, 30, 50, 20, 40)
    kept, nested = without_nested(actions(inner, outer, second))
    assert kept.rows() == [outer]
    assert nested.rows() == [inner, second]


def test_keeps_concurrent_actions_on_another_stream():
    kept, nested = without_nested(actions((0, 10, 50, 0, 5), (0, 12, 20, 6, 8)))
    assert (kept.height, nested.height) == (2, 0)


def test_nesting_is_per_rank():
    kept, nested = without_nested(actions((0, 10, 50, 0, 40), (1, 12, 20, 2, 10)))
    assert (kept.height, nested.height) == (2, 0)


def test_actions_belong_to_the_step_in_which_their_mark_started_on_the_host():
    steps = pl.DataFrame(
        [(0, 7, 100, 200), (0, 8, 300, 400)],
        schema={"rank": pl.Int32, "step": pl.Int32, "host_start_ns": pl.Int64, "step_end_ns": pl.Int64},
        orient="row",
    )
    rows = [(0, 900, 910, host, host + 5) for host in (50, 100, 200, 250, 399, 500)] + [(1, 0, 1, 0, 1)]
    assert with_steps(actions(*rows), steps)["step"].to_list() == [None, 7, 7, None, 8, None, 0]
