"""stagescope's own exports, read back."""

import gzip
from dataclasses import replace

import polars as pl
import pytest
import zstandard

import stagescope
from drawing import timeline_from_text
from perfetto_traces import trace_of
from places import DATA
from stagescope.exporters.names import LOOKS
from stagescope.exporters.perfetto import pftrace
from stagescope.ingest.perfetto.own_exports import KIND_OF_WORD
from stagescope.ingest.perfetto.reader import READER
from stagescope.ingest.reader import ReadOptions
from stagescope.vocabulary.errors import InputError
from synthetic import Shape, awkward_timeline, pipeline_timeline

COLUMNS = ("rank", "start_ns", "end_ns", "lane", "kind", "step", "stage", "microbatch", "pair", "peer", "bytes",
           "wait_start_ns", "wait_end_ns")  # fmt: skip


def rows(timeline, columns=COLUMNS):
    spans = timeline.spans.select(pl.col(name) for name in columns)
    return (
        spans.with_columns(pl.col("lane", "kind").cast(pl.String)).sort(columns[:5], nulls_last=True).rows()
    )


@pytest.fixture
def exported(tmp_path):
    def export(timeline, name="run.pftrace"):
        pftrace.write(timeline, tmp_path / name)
        return tmp_path / name

    return export


def read(path):
    return READER.read([path], ReadOptions())


def test_the_words_are_those_of_the_exporter():
    assert {look.word: kind for kind, look in LOOKS.items()} == KIND_OF_WORD


def test_every_span_of_an_export_equals_the_original(exported):
    original = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=2))
    again = read(exported(original))
    assert again.spans.height == 328
    assert rows(again) == rows(original)
    assert again.spans["chunk"].to_list() == [
        0 if stage is not None else None for stage in again.spans["stage"]
    ]
    assert again.ranks.select("rank", "machine").rows() == original.ranks.select("rank", "machine").rows()
    assert again.diagnostics.is_empty()


@pytest.mark.parametrize("name", ["1F1B", "DualPipeV", "GPipe", "ZBVZeroBubble"])
def test_real_traces_survive_an_export(exported, name):
    # A trace of Kineto has spans that overlap by less than a microsecond, whose ends an export moves.
    original = stagescope.read(DATA / "kineto" / name)
    again = read(exported(original))
    key = ["rank", "kind", "step", "stage", "microbatch"]
    both = [
        frame.spans.with_columns(pl.col("kind").cast(pl.String)).sort(*key, "start_ns")
        for frame in (original, again)
    ]
    assert both[0].select(key).rows() == both[1].select(key).rows()
    ends = both[0]["end_ns"] - both[1]["end_ns"]
    assert both[0]["start_ns"].to_list() == both[1]["start_ns"].to_list()
    assert ends.min() >= 0
    assert ends.max() <= 1000


def test_waits_stay_with_their_transfers_if_others_have_none(exported):
    original = pipeline_timeline(Shape(ranks=4, microbatches=4, steps=3))
    is_early = (pl.col("step") == 0) & (pl.col("microbatch") != 2)
    waits = {name: pl.when(is_early).then(None).otherwise(name) for name in ("wait_start_ns", "wait_end_ns")}
    original = original.with_spans(original.spans.with_columns(**waits))
    assert rows(read(exported(original))) == rows(original)


def test_receives_without_a_recorded_send_keep_their_peer_and_size(exported):
    original = pipeline_timeline(Shape(ranks=4, microbatches=4, steps=2))
    original = original.with_spans(original.spans.filter(pl.col("rank") != 1))
    assert rows(read(exported(original))) == rows(original)


def test_transfers_without_an_action_keep_their_step_and_number(exported):
    original = pipeline_timeline(Shape(ranks=2, microbatches=2, steps=2))
    is_transfer = pl.col("kind").cast(pl.String).str.contains("send|recv")
    number = pl.when(is_transfer).then(pl.int_range(pl.len(), dtype=pl.Int32))
    unnamed = pl.when(~is_transfer).then("microbatch")
    original = original.with_spans(original.spans.with_columns(pair=number, microbatch=unnamed))
    assert rows(read(exported(original))) == rows(original)


def test_names_of_other_spans_are_kept(exported):
    original = awkward_timeline()
    names = set(original.spans.filter(pl.col("kind") == "other")["name"].drop_nulls()) - {"", "7", " "}
    assert names <= set(read(exported(original)).spans["name"])


def test_a_report_of_an_export_equals_that_of_the_run(exported):
    original = timeline_from_text("F0 F1 .  B0 .  B1\n.  F0 B0 F1 B1 .", cell_ns=1_000_000)
    again = stagescope.read(exported(original))
    assert stagescope.analyze(again).bubble.fraction == stagescope.analyze(original).bubble.fraction


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_reads_compressed_exports(exported, pack):
    path = exported(pipeline_timeline(Shape(2, 2, 1)))
    original = rows(read(path))
    path.write_bytes(pack(path.read_bytes()))
    assert rows(stagescope.read(path)) == original


def test_a_truncated_export_is_read_up_to_the_cut(exported):
    path = exported(pipeline_timeline(Shape(2, 4, 1)))
    whole = read(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 4])
    cut = read(path)
    assert 0 < cut.spans.height < whole.spans.height
    assert "input.truncated" in cut.diagnostics["code"].to_list()
    assert cut.is_partial


def test_a_trace_without_actions_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "empty.pftrace"
    path.write_bytes(b"\x0a\x02\x50\x01")
    with pytest.raises(InputError, match="no track of the Perfetto trace has a slice"):
        stagescope.read(path)


def part(timeline, ranks):
    """Return the run without its other ranks."""
    of_ranks = {
        name: getattr(timeline, name).filter(pl.col("rank").is_in(ranks))
        for name in ("spans", "ranks", "steps")
    }
    return replace(timeline, **of_ranks)


def test_exports_of_parts_of_a_run_that_are_joined_are_the_run(exported, tmp_path):
    whole = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=2))
    first, second = (exported(part(whole, ranks), f"{ranks[0]}.pftrace") for ranks in ([0, 1], [2, 3]))
    joined = tmp_path / "joined.pftrace"
    for order in ([first, second], [second, first]):
        joined.write_bytes(b"".join(file.read_bytes() for file in order))
        assert rows(read(joined)) == rows(READER.read(order, ReadOptions()))
        assert read(joined).diagnostics.is_empty()


def test_exports_of_two_runs_that_are_joined_are_refused_with_the_reason(exported, tmp_path):
    files = [exported(pipeline_timeline(Shape(ranks, 4, 1)), f"{ranks}.pftrace") for ranks in (2, 3)]
    joined = tmp_path / "joined.pftrace"
    joined.write_bytes(b"".join(file.read_bytes() for file in files))
    with pytest.raises(InputError) as refused:
        stagescope.read(joined)
    assert str(refused.value) == (
        f"{joined} has 2 exports of stagescope, one behind the other, and more than one of them has rank 0"
    )


def test_an_export_that_is_joined_with_itself_is_used_once(exported, tmp_path):
    path = exported(pipeline_timeline(Shape(2, 4, 1)))
    joined = tmp_path / "joined.pftrace"
    joined.write_bytes(path.read_bytes() * 3)
    again = read(joined)
    assert rows(again) == rows(read(path))
    assert again.diagnostics.select("severity", "code", "count").rows() == [("warning", "events.repeated", 2)]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_trace_of_another_tool_beside_an_export_is_not_read(exported, tmp_path, is_first):
    path = exported(pipeline_timeline(Shape(2, 4, 1)))
    other = trace_of(timeline_from_text("F0 B0"), "{kind}_{microbatch}").SerializeToString()
    joined = tmp_path / "joined.pftrace"
    parts = [path.read_bytes(), other]
    joined.write_bytes(b"".join(parts if is_first else reversed(parts)))
    again = read(joined)
    assert rows(again) == rows(read(path))
    assert again.diagnostics.select("severity", "code", "count").rows() == [
        ("info", "slices.beside_export", 2)
    ]


def test_a_merged_trace_is_read_as_the_run(tmp_path):
    run = stagescope.read(DATA / "kineto" / "GPipe")
    merged, plain = tmp_path / "merged.pftrace", tmp_path / "plain.pftrace"
    stagescope.export(run, merged, format="merged-pftrace")
    stagescope.export(run, plain)
    again = read(merged)
    assert rows(again) == rows(read(plain))
    assert again.diagnostics["code"].to_list() == ["slices.beside_export"]
