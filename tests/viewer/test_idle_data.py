import polars as pl

import planted_runs
from column_blobs import read_blob
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.idle_data import encode_idle, encode_idle_after_spans, viewer_idle
from stagescope.viewer.run_data import shown_ranks
from stagescope.viewer.span_data import viewer_spans
from synthetic import Shape, pipeline_timeline

RUN = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=3))
BASE_NS = RUN.spans["start_ns"].min()
SPANS = viewer_spans(RUN.spans, shown_ranks(RUN))
GAPS = viewer_idle(gather_extras(RUN).idle, SPANS, shown_ranks(RUN))


def starts_after_spans(blob, spans):
    """Return the starts relative to the start of the run, decoded as docs/viewer-format.md specifies."""
    columns, _ = read_blob(blob)
    starts, row_before, end = [], None, 0
    for row, duration, after, lead in zip(
        columns["row"], columns["duration"], columns["after"], columns["lead"], strict=True
    ):
        if row != row_before:
            end = 0
        start = end + lead if after is None else spans["start"][after] + spans["duration"][after] - BASE_NS
        starts.append(start)
        row_before, end = row, start + duration
    return starts


def test_pieces_are_sorted_and_name_the_span_that_they_wait_for():
    assert GAPS.select("row", "start").equals(GAPS.select("row", "start").sort("row", "start"))
    waiting = GAPS.drop_nulls("waits_for")
    assert waiting.height > 0
    ends = (SPANS["start"] + SPANS["duration"])[waiting["waits_for"].to_list()]
    of_compute = waiting.with_columns(ends=ends).filter(pl.col("waiting_for") == "compute")
    assert (of_compute["start"] + of_compute["duration"] == of_compute["ends"]).all()


def test_starts_stored_after_spans_are_equal():
    plain, beside = encode_idle(GAPS, BASE_NS), encode_idle_after_spans(GAPS, SPANS, BASE_NS)
    columns, facts = read_blob(plain)
    assert columns["start"] == GAPS["start"].to_list()
    assert facts["origin"] == GAPS["start"].min() - BASE_NS
    expected = (GAPS["start"] - BASE_NS).to_list()
    assert starts_after_spans(beside, SPANS) == expected
    rest = read_blob(beside)[0]
    for name in ("row", "duration", "step", "waiting_for", "waits_for"):
        assert rest[name] == columns[name] == GAPS[name].to_list()


def test_starts_stored_after_spans_are_smaller_for_irregular_times():
    run = planted_runs.run(planted_runs.random_times(planted_runs.Shape()))
    spans = viewer_spans(run.spans, shown_ranks(run))
    idle = viewer_idle(gather_extras(run).idle, spans, shown_ranks(run))
    base_ns = run.spans["start_ns"].min()
    assert len(encode_idle_after_spans(idle, spans, base_ns)) < 0.8 * len(encode_idle(idle, base_ns))


def test_pieces_that_overlap_keep_their_starts():
    overlapping = GAPS.head(2).with_columns(
        row=pl.lit(0, pl.Int32), start=pl.Series([BASE_NS + 3, BASE_NS + 5]), duration=pl.lit(10, pl.Int64)
    )
    blob = encode_idle_after_spans(overlapping, SPANS, BASE_NS)
    assert blob == encode_idle(overlapping, BASE_NS)
