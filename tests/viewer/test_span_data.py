import polars as pl

from column_blobs import read_blob
from drawing import timeline_from_text
from stagescope.viewer.span_data import encode_spans, viewer_spans
from synthetic import Shape, pipeline_timeline

RUN = pipeline_timeline(Shape(ranks=3, microbatches=4, steps=2))


def test_every_span_comes_back_from_the_blob_as_it_is_in_the_table():
    placed = viewer_spans(RUN.spans, [0, 1, 2])
    base_ns = RUN.spans["start_ns"].min()
    columns, facts = read_blob(encode_spans(placed, base_ns))
    assert facts == {"origin": 0, "first": 0}
    source = RUN.spans[placed["source_row"].to_list()]
    assert columns["start"] == source["start_ns"].to_list()
    assert columns["duration"] == (source["end_ns"] - source["start_ns"]).to_list()
    for name in ("step", "stage", "chunk", "microbatch", "pair", "peer", "bytes", "name"):
        assert columns[name] == source[name].to_list(), name
    waits = source.select(pl.col("wait_start_ns") - pl.col("start_ns")).to_series().to_list()
    assert columns["wait"] == waits


def test_spans_are_in_order_of_row_lane_and_start():
    placed = viewer_spans(RUN.spans.sample(fraction=1.0, shuffle=True, seed=3), [2, 1, 0])
    assert placed.equals(placed.sort("row", "lane", "start", maintain_order=True))
    assert (
        placed.filter(pl.col("row") == 0)["source_row"].len() == RUN.spans.filter(pl.col("rank") == 2).height
    )


def test_the_halves_of_an_overlapped_pair_share_the_height_forward_on_top():
    timeline = timeline_from_text("F0 - B1 -")
    both = timeline.spans.with_columns(start_ns=pl.lit(0, pl.Int64), end_ns=pl.lit(50, pl.Int64))
    placed = viewer_spans(both, [0])
    assert placed.select("kind", "sublane", "sublanes").rows() == [(1, 0, 2), (2, 1, 2)]


def test_spans_that_only_touch_have_the_whole_height():
    placed = viewer_spans(timeline_from_text("F0 B0 F1 B1").spans, [0])
    assert placed["sublanes"].to_list() == [1, 1, 1, 1]


def test_a_span_that_ends_before_it_starts_has_no_length():
    spans = timeline_from_text("F0").spans.with_columns(end_ns=pl.col("start_ns") - 5)
    assert viewer_spans(spans, [0])["duration"].to_list() == [0]


def test_part_stores_its_distance_from_the_start_of_the_run():
    placed = viewer_spans(RUN.spans, [0, 1, 2])
    base_ns = RUN.spans["start_ns"].min()
    part = placed[10:20]
    columns, facts = read_blob(encode_spans(part, base_ns, first=10))
    assert facts == {"origin": part["start"].min() - base_ns, "first": 10}
    assert columns["start"] == part["start"].to_list()
