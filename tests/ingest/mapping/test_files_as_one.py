"""Slices are numbers of texts, and mapped file by file: how they are divided into files changes no span."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import stagescope
from drawing import timeline_from_text
from stagescope.ingest.chrome import reader
from stagescope.ingest.chrome.reader import read_slices
from stagescope.ingest.mapping.choice import wanted_arguments
from stagescope.ingest.mapping.request import mapping_request
from stagescope.ingest.mapping.slices import different_texts
from stagescope.ingest.mapping.timeline import timeline_of_slices
from stagescope.ingest.reader import ReadOptions

DRAWING = """
F0 F1 F2 .  B0 .  B1 B2
.  F0 F1 F2 B0 B1 B2 .
"""
MAPPING = """
[fields]
rank = "pid"
step = "args.train"
[texts]
thread = "stage {pp} of *"
[[rules]]
name = "forward"
kind = "forward"
fields = { microbatch = "args.of.mb", stage = "thread.pp" }
[[rules]]
name = "backward"
kind = "backward"
"args.mb" = "number {microbatch}"
[[rules]]
category = "kernel"
kind = "other"
fields = { bytes = "args.size * 1000000000000" }
"""
KERNELS = 400
"""More different names than a number of one byte has."""


def events_of_rank(rank):
    """Return the events of two steps of one rank; of the ranks, each has texts that the other one lacks."""
    lane = {"pid": 10 + rank, "tid": 7 * rank}
    events = [{"ph": "M", "name": "thread_name", **lane, "args": {"name": f"stage {rank} of 2"}}]
    spans = timeline_from_text(DRAWING).spans.filter(pl.col("rank") == rank)
    for step in (4, 5):
        for span in spans.iter_rows(named=True):
            start_us, end_us = (span[name] / 1000 + 1000 * step for name in ("start_ns", "end_ns"))
            number = span["microbatch"]
            stated = {"of": {"mb": number}} if span["kind"] == "forward" else {"mb": f"number {number}"}
            begin = {"ph": "B", "name": span["kind"], "cat": "action", "ts": start_us, **lane}
            end = {"ph": "E", "cat": "action", "ts": end_us, **lane, "args": {"train": step, **stated}}
            kernels = [
                {"ph": "X", "name": f"kernel {rank} {number} {each}", "cat": "kernel", "ts": start_us, "dur": 0.01,
                 **lane, "args": {"size": each % 3} if each % 2 else {}}
                for each in range(KERNELS // 4)
            ]  # fmt: skip
            events += [begin, end, *kernels]
    return events


def written(path, events):
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    directory = tmp_path / "files"
    directory.mkdir()
    return [written(directory / f"trace{rank}.json", events_of_rank(rank)) for rank in (1, 0)]


@pytest.fixture
def whole(tmp_path):
    return written(tmp_path / "trace.json", [*events_of_rank(1), *events_of_rank(0)])


@pytest.fixture
def mapping(tmp_path):
    path = tmp_path / "mapping.toml"
    path.write_text(MAPPING, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "only", [None, {"category": "action"}, {"tid": 7}], ids=["all", "category", "thread"]
)
def test_files_have_the_spans_of_one_file_with_the_same_events(files, whole, mapping, only):
    of_files, of_whole = (stagescope.read(*paths, mapping=mapping, only=only) for paths in (files, [whole]))
    order = ["rank", "start_ns", "end_ns", "kind", "name"]
    assert_frame_equal(of_files.spans.sort(order), of_whole.spans.sort(order))
    shared = ["rank", "pp", "dp", "tp"]
    assert_frame_equal(of_files.ranks.select(shared), of_whole.ranks.select(shared))
    source = {10: str(files[1]), 11: str(files[0])}
    assert of_files.ranks["source"].to_list() == [source[rank] for rank in of_files.ranks["rank"]]
    messages = [
        read.diagnostics.filter(pl.col("code").is_in(["trace.mapped", "trace.unmapped"]))["message"].to_list()
        for read in (of_files, of_whole)
    ]
    assert messages[0] == messages[1]


def test_mapped_spans_have_the_planted_identity_and_names(files, mapping):
    spans = stagescope.read(*files, mapping=mapping).spans
    actions = spans.filter(pl.col("kind") != "other")
    planted = timeline_from_text(DRAWING).spans
    kind = pl.col("kind").cast(pl.String)
    expected = sorted(
        (rank + 10, step, name, number)
        for step in (4, 5)
        for rank, name, number in planted.select("rank", kind, "microbatch").iter_rows()
    )
    assert sorted(actions.select("rank", "step", kind, "microbatch").rows()) == expected
    others = spans.filter(pl.col("kind") == "other")
    assert others["name"].n_unique() == 2 * 3 * KERNELS // 4
    of_second = others.filter(pl.col("name").str.starts_with("kernel 1"))
    assert of_second["rank"].unique().to_list() == [11]


def test_slices_of_a_file_are_released_when_it_is_mapped(files, mapping):
    options = ReadOptions(mapping=mapping_request(None, mapping, None))
    read = [read_slices(path, wanted_arguments(options)) for path in files]
    assert timeline_of_slices(read, options).spans.height
    assert [(file.path, file.slices.height) for file in read] == [(path, 0) for path in files]


def test_texts_are_listed_once_for_a_file(whole, mapping):
    arguments = wanted_arguments(ReadOptions(mapping=mapping_request(None, mapping, None)))
    slices = read_slices(whole, arguments).slices
    assert {name for name, dtype in slices.schema.items() if dtype == pl.String} == set()
    assert sorted(different_texts(slices["category"])) == ["action", "kernel"]
    assert slices["thread_name"].cast(pl.String).unique().sort().to_list() == ["stage 0 of 2", "stage 1 of 2"]
    assert slices["args.size"].cast(pl.String).unique().sort().to_list() == [None, "0", "1", "2"]


def test_copies_of_events_are_found_in_files_of_any_size(tmp_path, monkeypatch):
    events = [event for rank in (0, 1) for event in events_of_rank(rank)]
    path = written(tmp_path / "trace.json", [*events, *events[5:900:7]])
    at_once = read_slices(path)
    monkeypatch.setattr(reader, "COMPARED_ROWS", 100)
    in_parts = read_slices(path)
    assert_frame_equal(in_parts.slices, at_once.slices)
    assert in_parts.diagnostics == at_once.diagnostics
    assert "events.repeated" in {row.code for row in in_parts.diagnostics}


@pytest.mark.parametrize(
    ("place", "added"),
    [
        ("[[rules]]", '[[rules]]\nkind = "other"\n"args.absent" = "number {stage}"\n[[rules]]'),
        ("[texts]", '[texts]\n"args.absent" = "number {chunk}"'),
    ],
    ids=["rule", "texts"],
)
def test_a_pattern_of_an_argument_that_no_event_has_matches_nothing(files, mapping, place, added):
    expected = stagescope.read(*files, mapping=mapping).spans
    mapping.write_text(MAPPING.replace(place, added, 1), encoding="utf-8")
    assert_frame_equal(stagescope.read(*files, mapping=mapping).spans, expected)
