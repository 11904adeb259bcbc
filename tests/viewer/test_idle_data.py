import polars as pl
import pytest

import planted_runs
from column_blobs import read_blob
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.idle_data import encode_idle, encode_idle_after_spans, viewer_idle
from stagescope.viewer.run_data import shown_ranks
from stagescope.viewer.span_data import viewer_spans
from synthetic import Shape, pipeline_timeline


@pytest.fixture(scope="module")
def run():
    """Return the start of a run, its spans and its idle intervals."""
    run = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=3))
    spans = viewer_spans(run.spans, shown_ranks(run))
    return run.spans["start_ns"].min(), spans, viewer_idle(gather_extras(run).idle, spans, shown_ranks(run))


def starts_after_spans(blob, spans, base_ns):
    """Return the starts relative to the start of the run, decoded as docs/viewer-format.md specifies."""
    columns, _ = read_blob(blob)
    starts, row_before, end = [], None, 0
    for row, duration, after, lead in zip(
        columns["row"], columns["duration"], columns["after"], columns["lead"], strict=True
    ):
        if row != row_before:
            end = 0
        start = end + lead if after is None else spans["start"][after] + spans["duration"][after] - base_ns
        starts.append(start)
        row_before, end = row, start + duration
    return starts


def test_pieces_are_sorted_and_name_the_span_that_they_wait_for(run):
    _, spans, gaps = run
    assert gaps.select("row", "start").equals(gaps.select("row", "start").sort("row", "start"))
    waiting = gaps.drop_nulls("waits_for")
    assert waiting.height > 0
    ends = (spans["start"] + spans["duration"])[waiting["waits_for"].to_list()]
    of_compute = waiting.with_columns(ends=ends).filter(pl.col("waiting_for") == "compute")
    assert (of_compute["start"] + of_compute["duration"] == of_compute["ends"]).all()


def test_starts_stored_after_spans_are_equal(run):
    base_ns, spans, gaps = run
    plain, beside = encode_idle(gaps, base_ns), encode_idle_after_spans(gaps, spans, base_ns)
    columns, facts = read_blob(plain)
    assert columns["start"] == gaps["start"].to_list()
    assert facts["origin"] == gaps["start"].min() - base_ns
    expected = (gaps["start"] - base_ns).to_list()
    assert starts_after_spans(beside, spans, base_ns) == expected
    rest = read_blob(beside)[0]
    for name in ("row", "duration", "step", "waiting_for", "waits_for"):
        assert rest[name] == columns[name] == gaps[name].to_list()


def test_starts_stored_after_spans_are_smaller_for_irregular_times():
    run = planted_runs.run(planted_runs.random_times(planted_runs.Shape()))
    spans = viewer_spans(run.spans, shown_ranks(run))
    idle = viewer_idle(gather_extras(run).idle, spans, shown_ranks(run))
    base_ns = run.spans["start_ns"].min()
    assert len(encode_idle_after_spans(idle, spans, base_ns)) < 0.8 * len(encode_idle(idle, base_ns))


def test_pieces_that_overlap_keep_their_starts(run):
    base_ns, spans, gaps = run
    overlapping = gaps.head(2).with_columns(
        row=pl.lit(0, pl.Int32), start=pl.Series([base_ns + 3, base_ns + 5]), duration=pl.lit(10, pl.Int64)
    )
    blob = encode_idle_after_spans(overlapping, spans, base_ns)
    assert blob == encode_idle(overlapping, base_ns)
