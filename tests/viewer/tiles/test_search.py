"""Searches against Polars filters on the spans table."""

import numpy as np
import polars as pl
import pytest

from running_server import run_of
from stagescope.viewer.span_data import viewer_spans
from stagescope.viewer.tiles import search
from stagescope.viewer.tiles.query import QueryError
from stagescope.viewer.tiles.search import search_spans
from stagescope.vocabulary.kinds import BY_NAME
from synthetic import Shape, pipeline_timeline


def with_names(timeline):
    names = pl.Series([None, "gpt.forward", "Backward of 7", None] * (timeline.spans.height // 4 + 1))
    return timeline.with_spans(timeline.spans.with_columns(name=names.head(timeline.spans.height)))


TIMELINE = with_names(pipeline_timeline(Shape(ranks=4, microbatches=12, steps=3)))
FORWARD, BACKWARD = BY_NAME["forward"].code, BY_NAME["backward"].code
KIND, DUR = pl.col("kind"), pl.col("duration")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(TIMELINE, tmp_path_factory.mktemp("search") / "run")


@pytest.fixture(scope="module")
def spans():
    found = viewer_spans(TIMELINE.spans, range(4))
    return found.with_columns(pl.col("start") - found["start"].min()).with_row_index("id")


@pytest.mark.parametrize(
    ("query", "condition"),
    [
        (
            "stage:3 mb:7 kind:B dur>1ms",
            (pl.col("stage") == 3) & (pl.col("microbatch") == 7) & (KIND == BACKWARD) & (DUR > 1e6),
        ),
        ("F3", (KIND == FORWARD) & (pl.col("microbatch") == 3)),
        ("B2.11", (KIND == BACKWARD) & (pl.col("stage") == 2) & (pl.col("microbatch") == 11)),
        ("kind:forward", KIND == FORWARD),
        ("kind:F,B step:1-2", KIND.is_in([FORWARD, BACKWARD]) & pl.col("step").is_in([1, 2])),
        ("mb:1,3,5-7", pl.col("microbatch").is_in([1, 3, 5, 6, 7])),
        ("rank:0,2 lane:comm", pl.col("row").is_in([0, 2]) & (pl.col("lane") == 1)),
        ("rank>=2", pl.col("row") >= 2),
        ("peer:1", pl.col("peer") == 1),
        ("peer<1", pl.col("peer") < 1),
        ("dur<=20.001us", DUR <= 20_001),
        ("dur>.5ms", DUR > 500_000),
        ("wait>100us", pl.col("wait_duration") > 100_000),
        ("start<3ms", pl.col("start") < 3_000_000),
        ("name:GPT", pl.col("name").str.to_lowercase().str.contains("gpt", literal=True)),
        ('name:"backward of"', pl.col("name").str.to_lowercase().str.contains("backward of", literal=True)),
        ("gpt.for", pl.col("name").str.contains("gpt.for", literal=True)),
        ("forward", (KIND == FORWARD) | pl.col("name").str.contains("forward", literal=True)),
        ("nosuchname", pl.lit(value=False)),
        ("mb>5 mb<8", pl.col("microbatch").is_in([6, 7])),
    ],
)
def test_a_search_finds_what_a_filter_finds(run, spans, query, condition):
    wanted = spans.filter(condition.fill_null(value=False)).sort("start", "id", maintain_order=True)
    found = search_spans(run.levels, run.meta, query, 1000)
    assert found["count"] == wanted.height
    assert found["ids"] == wanted["id"].to_list()[:1000]
    assert found["starts"] == wanted["start"].to_list()[:1000]
    assert found["rows"] == wanted["row"].to_list()[:1000]
    assert found["durations"] == wanted["duration"].to_list()[:1000]


def test_all_matches_are_counted_by_layer_and_kind(run, spans):
    found = search_spans(run.levels, run.meta, "mb:5", 5)
    groups = spans.filter(pl.col("microbatch") == 5).group_by("lane", "kind").len().sort("lane", "kind")
    assert [tuple(group.values()) for group in found["groups"]] == groups.rows()
    assert {group["layer"] for group in found["groups"]} == {0, 1}
    listed = spans[found["ids"]]
    assert (found["layers"], found["kinds"]) == (listed["lane"].to_list(), listed["kind"].to_list())


def test_host_spans_of_ranks_without_actions_are_drawn_like_actions(tmp_path):
    on_host = pl.when(pl.col("rank") == 0, pl.col("lane") == "compute").then(pl.lit("host")).otherwise("lane")
    timeline = TIMELINE.with_spans(
        TIMELINE.spans.with_columns(lane=on_host.cast(TIMELINE.spans["lane"].dtype))
    )
    run = run_of(timeline, tmp_path / "run")
    found = search_spans(run.levels, run.meta, "kind:F", 9)
    assert {group["layer"] for group in found["groups"]} == {0}


def test_only_the_first_are_listed_and_all_are_counted(run):
    whole, some = (search_spans(run.levels, run.meta, "kind:F", most) for most in (1000, 5))
    assert some["count"] == whole["count"] == 4 * 12 * 3
    assert some["ids"] == whole["ids"][:5]


def test_search_in_parts_gives_the_same_result(run, monkeypatch):
    whole = search_spans(run.levels, run.meta, "gpt mb>3", 50)
    monkeypatch.setattr(search, "SPANS_AT_ONCE", 37)
    assert search_spans(run.levels, run.meta, "gpt mb>3", 50) == whole


def test_empty_query_matches_nothing(run):
    assert search_spans(run.levels, run.meta, "   ", 5)["count"] == 0


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("nonsense:3", 'Unknown field "nonsense".'),
        ("kind:Z", 'Unknown kind "Z".'),
        ("lane:nowhere", 'Unknown lane "nowhere". Lanes: compute, comm, host.'),
        ("mb:x", '"x" is neither an integer such as 3 nor a range such as 3-7.'),
        ("mb>x", '"x" is not an integer.'),
        ("dur>5parsecs", '"5parsecs" is not a duration such as 5ms, 300us or 20ns.'),
        ("mb:" + "9" * 40, "is neither an integer"),
    ],
)
def test_invalid_query_is_explained(run, query, sentence):
    with pytest.raises(QueryError) as raised:
        search_spans(run.levels, run.meta, query, 5)
    assert sentence in str(raised.value)


def test_run_without_facts_has_no_matches_for_them(tmp_path):
    bare = TIMELINE.spans.with_columns(
        *(pl.lit(None).cast(TIMELINE.spans.schema[name]).alias(name) for name in ("peer", "pair", "bytes", "name")),
        wait_start_ns=pl.lit(None, pl.Int64), wait_end_ns=pl.lit(None, pl.Int64),
    )  # fmt: skip
    run = run_of(TIMELINE.with_spans(bare), tmp_path / "run")
    assert run.levels.facts is None
    assert [
        search_spans(run.levels, run.meta, query, 5)["count"] for query in ("peer:1", "wait>1ns", "gpt")
    ] == [0] * 3
    assert search_spans(run.levels, run.meta, "F0", 5)["count"] == 12
    assert np.array_equal(run.levels.spans.index.first[[0, -1]], [0, bare.height])
