"""OpenTelemetry traces: complete runs as Megatron-LM writes them, and unsuitable files."""

import gzip

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from otlp_requests import EPOCH_NS, megatron_rank, request, span, write_lines
from stagescope.vocabulary.errors import InputError

DRAWING = """
F0 F1 .  B0 F2 B1 .  B2
.  F0 B0 F1 B1 F2 B2 .
"""


@pytest.fixture
def drawn():
    return timeline_from_text(DRAWING, cell_ns=1000).spans


@pytest.fixture
def path(tmp_path, drawn):
    return write_lines(
        tmp_path / "run.otlp.jsonl", *(request(megatron_rank(drawn, rank), rank=rank) for rank in (0, 1))
    )


def test_recovers_a_drawn_run(path, drawn):
    found = stagescope.read(path, align=False)
    columns = ["rank", "kind", "stage", "microbatch", "start_ns", "end_ns"]
    actions = found.spans.filter(pl.col("kind").is_in(["forward", "backward"])).select(columns)
    wanted = drawn.with_columns(pl.col("start_ns", "end_ns") + EPOCH_NS).select(columns)
    assert actions.sort("rank", "start_ns").equals(wanted.sort("rank", "start_ns"))
    assert found.spans["step"].unique().to_list() == [7]
    assert found.steps["step"].to_list() == [7, 7]
    assert found.ranks.select("host", "clock").unique().rows() == [("node1", "node1/wall clock")]


def test_links_state_the_other_end_of_transfers(path):
    spans = stagescope.read(path, align=False).spans
    transfers = spans.filter(pl.col("kind").cast(pl.String).str.contains("_")).select(
        "rank", "kind", "microbatch", "peer"
    )
    wanted = [
        (rank, f"{way}_{kind}", number, 1 - rank)
        for kind, sender in (("forward", 0), ("backward", 1))
        for way, rank in (("send", sender), ("recv", 1 - sender))
        for number in range(3)
    ]
    assert sorted(transfers.rows()) == sorted(wanted)


@pytest.mark.parametrize("damage", [('"spanId"', '"spnId"'), ('"spanId": "', '"spanId": "f')])
def test_links_that_lead_nowhere_are_counted(path, tmp_path, damage):
    before, found, link = path.read_text().partition('"links": [{')
    broken = tmp_path / "broken.otlp.jsonl"
    broken.write_text(before + found + link.replace(*damage, 1))
    assert stagescope.read(path, align=False).diagnostics.filter(code="transfers.unmatched").is_empty()
    read = stagescope.read(broken, align=False)
    assert read.diagnostics.filter(code="transfers.unmatched")["count"].to_list() == [1]
    transfers = read.spans.filter(pl.col("kind").cast(pl.String).str.contains("_"))
    assert transfers["peer"].null_count() == 2


def test_transfers_without_spans_do_not_shift_the_others(tmp_path, drawn):
    # Megatron marks no transfers of the steady state: only the last backward is received with a span of its own.
    spans = megatron_rank(drawn, 0)
    receives = [one for one in spans if one["name"].endswith("recv_backward")]
    for one in receives[:-1]:
        spans.remove(one)
    found = stagescope.read(write_lines(tmp_path / "a.otlp.jsonl", request(spans)), align=False)
    assert found.spans.filter(kind="recv_backward")["microbatch"].to_list() == [2]


def test_evaluations_are_not_part_of_a_step(tmp_path, drawn):
    path = write_lines(tmp_path / "a.otlp.jsonl", request(megatron_rank(drawn, 0, evaluation=True)))
    found = stagescope.read(path, align=False)
    assert found.spans.filter(kind="forward")["microbatch"].to_list() == [0, 1, 2]
    assert found.diagnostics.filter(code="actions.evaluation")["count"].to_list() == [1]
    assert found.spans.filter(kind="other")["name"].to_list() == ["evaluate"]


def test_spans_that_were_sent_twice_are_used_once(path, tmp_path):
    lines = path.read_text()
    (tmp_path / "twice.otlp.jsonl").write_text(lines + lines)
    whole, twice = (stagescope.read(one, align=False) for one in (path, tmp_path / "twice.otlp.jsonl"))
    assert twice.spans.equals(whole.spans)
    assert twice.diagnostics.filter(code="events.repeated")["count"].to_list() == [26]


def test_one_file_per_rank_and_compression(tmp_path, drawn, path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in (0, 1):
        one = write_lines(folder / f"traces{rank}.json", request(megatron_rank(drawn, rank), rank=rank))
        one.write_bytes(gzip.compress(one.read_bytes()))
    assert stagescope.read(folder, align=False).spans.equals(stagescope.read(path, align=False).spans)


def test_other_names_need_numbers_in_names_or_attributes(tmp_path):
    spans = [
        span("F0.0", 0, 10, 1, step=3),
        span("forward", 10, 20, 2, stage=0, microbatch=1, step=3),
        span("B0.0", 30, 40, 3, step=3),
        span("load", 50, 60, 4),
    ]
    found = stagescope.read(write_lines(tmp_path / "a.otlp.jsonl", request(spans)), align=False)
    assert found.spans.select("kind", "stage", "microbatch", "step").rows() == [
        ("forward", 0, 0, 3),
        ("forward", 0, 1, 3),
        ("backward", 0, 0, 3),
    ]
    assert found.diagnostics.filter(code="marks.unrecognized")["message"].to_list() == [
        "spans with other names are not read: load"
    ]


def test_the_error_without_actions_names_the_span_groups(tmp_path):
    path = write_lines(tmp_path / "a.otlp.jsonl", request([span("megatron.train", 0, 10, 1)]))
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == (
        f"no pipeline action in {path}: none of its 1 spans is named like one: 'megatron.train'"
    )
    assert "MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch,communication" in error.value.hint


def test_the_error_without_steps_states_what_is_unknown(tmp_path):
    path = write_lines(tmp_path / "a.otlp.jsonl", request([span("megatron.microbatch.forward", 0, 10, 1)]))
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert str(error.value) == (
        f"{path}: 1 spans of micro-batches state no micro-batch and are in no span of a training step, so it is "
        "unknown which belong together"
    )


def test_the_error_for_a_damaged_file_names_the_line(tmp_path):
    path = tmp_path / "a.otlp.jsonl"
    path.write_text('{"resourceSpans": [}\n')
    with pytest.raises(InputError) as error:
        stagescope.read(path)
    assert (
        str(error.value)
        == f"{path}: no complete request of OTLP in it: line 1: JSON is malformed: invalid character"
    )


def test_a_truncated_file_keeps_its_complete_lines(path):
    path.write_bytes(path.read_bytes()[:-50])
    found = stagescope.read(path, align=False)
    assert found.ranks["rank"].to_list() == [0]
    assert found.diagnostics.filter(code="input.truncated")["location"].to_list() == ["line 2"]


def test_two_processes_of_one_rank_are_refused(tmp_path, drawn):
    requests = [request(megatron_rank(drawn, 0), nemo__run__id=name) for name in ("a", "b")]
    path = write_lines(tmp_path / "a.otlp.jsonl", *requests)
    with pytest.raises(InputError, match=r"two recordings of rank 0: a in .* and b in "):
        stagescope.read(path)
