import polars as pl

from stagescope.export.writers import table
from stagescope.timeline import SPANS
from stagescope.timeline.validate import conform
from synthetic import awkward_timeline


def test_parquet_gives_the_spans_table_back(tmp_path):
    timeline = awkward_timeline()
    written = table.write_parquet(timeline, tmp_path / "spans.parquet")
    frame = pl.read_parquet(written.path)
    assert frame.schema["kind"] == frame.schema["lane"] == pl.String
    assert conform(frame, SPANS).equals(timeline.spans)
    assert (written.slice_count, written.size_bytes) == (timeline.spans.height, written.path.stat().st_size)


def test_csv_gives_the_spans_table_back(tmp_path):
    timeline = awkward_timeline()
    written = table.write_csv(timeline, tmp_path / "spans.csv")
    frame = pl.read_csv(written.path, infer_schema_length=None)
    assert frame.columns == SPANS.names
    assert conform(frame, SPANS).equals(timeline.spans)
    assert written.slice_count == timeline.spans.height
