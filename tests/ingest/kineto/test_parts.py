"""Annotated parts of overlapped pairs: DeepSeek's trace of DualPipe, and planted ones."""

from pathlib import Path

import polars as pl
import pytest
from tests.ingest.kineto.test_kernels import EVENTS, event, launched, trace

import stagescope
from stagescope.ingest.kineto.parts import find_parts
from stagescope.vocabulary.errors import InputError

DEEPSEEK = Path(__file__).parents[2] / "data/kernels/deepseek_train.json.gz"


def annotations(*rows):
    schema = {"name": pl.String, "thread": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    return pl.DataFrame([(name, 0, *times) for name, *times in rows], schema, orient="row")


def test_parts_in_one_annotation_are_one_pair_and_w_makes_b_an_input_gradient():
    found = find_parts(
        annotations(
            ("ProfilerStep#1", 0, 100),
            ("1F1B", 1, 20), ("attn(F)", 2, 5), ("mlp(B)", 6, 8), ("mlp(W)", 9, 11),
            ("1F1B", 30, 50), ("attn(F)", 32, 35), ("mlp(B)", 36, 38),
            ("alone", 60, 70), ("attn(F)", 61, 62),
            ("mlp(F)", 80, 90), ("mlp(B)", 91, 92),
        )
    )  # fmt: skip
    assert found.select("pair", "name", "kind").rows() == [
        (0, "attn(F)", "forward"), (0, "mlp(B)", "backward_input"), (0, "mlp(W)", "backward_weight"),
        (1, "attn(F)", "forward"), (1, "mlp(B)", "backward"),
    ]  # fmt: skip


def test_other_annotations_are_no_parts():
    assert find_parts(annotations(("1F1B", 0, 9), ("f(x)", 1, 2), ("attn(F) x", 3, 4))).is_empty()


def test_parts_of_deepseek_have_the_times_of_their_kernels_and_no_step():
    timeline = stagescope.read(DEEPSEEK)
    spans, kernels = timeline.spans, timeline.kernels
    assert spans.group_by("kind").len().sort("kind").rows() == [
        ("forward", 16),
        ("backward_input", 16),
        ("backward_weight", 8),
    ]
    assert spans["step"].null_count() == spans["stage"].null_count() == 40
    assert kernels.height == 983
    assert kernels["kind"].null_count() == 0
    assert (spans["start_ns"].min(), spans["end_ns"].max()) == (
        kernels["start_ns"].min(),
        kernels["end_ns"].max(),
    )
    on_comm = spans.filter(pl.col("lane") == "comm")["name"].str.extract(r"^(\w+)\(").unique().sort()
    assert on_comm.to_list() == ["combine", "dispatch"]
    assert "actions.only_parts" in timeline.diagnostics["code"]


def test_an_exchange_of_counts_belongs_to_the_exchange_that_follows():
    # The gradient of a combine is a dispatch, and that of a dispatch a combine.
    kernels = stagescope.read(DEEPSEEK).kernels.filter(pl.col("category") == "communication")
    assert kernels.group_by("operation", "part").len().sort("operation", "part").rows() == [
        ("dispatch", "combine(B)", 8),
        ("dispatch", "dispatch(F)", 8),
        ("combine", "combine(F)", 8),
        ("combine", "dispatch(B)", 8),
    ]


def test_named_actions_take_precedence_over_parts(tmp_path):
    parts = [event("user_annotation", "attn(F)", 1.0, 3.0), event("user_annotation", "mlp(B)", 4.0, 5.0)]
    timeline = stagescope.read(trace(tmp_path / "rank0.json", events=[*EVENTS, *parts]))
    assert timeline.spans["microbatch"].to_list() == [0, 0]


def test_parts_without_kernels_are_refused(tmp_path):
    events = [each for each in (*parts_of_a_pair(),) if each["cat"] != "kernel"]
    with pytest.raises(InputError):
        stagescope.read(trace(tmp_path / "rank0.json", events=events))


def test_a_part_without_a_kernel_stays_where_the_host_launched_it(tmp_path):
    timeline = stagescope.read(trace(tmp_path / "rank0.json", events=parts_of_a_pair()))
    assert timeline.spans.select("name", "lane").sort("name").rows() == [
        ("attn(F)", "compute"),
        ("mlp(B)", "host"),
    ]
    assert "actions.on_host" in timeline.diagnostics["code"]


def parts_of_a_pair():
    return [
        event("user_annotation", "1F1B", 0.0, 30.0),
        event("user_annotation", "attn(F)", 1.0, 10.0),
        event("user_annotation", "mlp(B)", 12.0, 10.0),
        *launched(1, 5.0, "flash_fwd", 50.0, 5.0),
    ]
