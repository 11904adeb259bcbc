import json

import polars as pl
import pytest

from drawing import timeline_from_text
from machines import on_machines
from stagescope.api import export
from stagescope.exporters import tables as table
from stagescope.model import COUNTERS, SPANS, STEPS
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import UsageError
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


def test_parquet_metadata_list_the_clocks_of_several_machines(tmp_path):
    machines = {0: "a"} | dict.fromkeys(range(1, 8), "b")
    timeline = on_machines(awkward_timeline(), machines, {"a": (0, 0), "b": (-30, 40)})
    written = table.write_parquet(timeline, tmp_path / "spans.parquet")
    clocks = json.loads(pl.read_parquet_metadata(written.path)["stagescope.clocks"])
    assert [(c["clock"], c["machine"], c["error_lo_ns"], c["error_hi_ns"]) for c in clocks] == [
        ("a/clock", "a", 0, 0),
        ("b/clock", "b", -30, 40),
    ]
    assert conform(pl.read_parquet(written.path), SPANS).equals(timeline.spans)


def test_parquet_of_one_clock_has_no_clock_metadata(tmp_path):
    written = table.write_parquet(awkward_timeline(), tmp_path / "spans.parquet")
    assert "stagescope.clocks" not in pl.read_parquet_metadata(written.path)


def test_any_table_of_the_model_can_be_written(tmp_path):
    timeline = awkward_timeline()
    written = export(timeline, tmp_path / "counters.parquet", table="counters")
    assert conform(pl.read_parquet(written.path), COUNTERS).equals(timeline.counters)
    assert written.slice_count == timeline.counters.height
    steps = export(timeline, tmp_path / "steps.csv", table="steps", step=1)
    assert conform(pl.read_csv(steps.path), STEPS).equals(timeline.only_step(1).steps)
    for name, wanted, message in (
        ("run.json", "counters", "--table only applies to tables (csv, parquet), not to chrome"),
        (
            "run.csv",
            "idle",
            "unknown table 'idle'; expected one of spans, ranks, steps, clocks, diagnostics, counters, kernels",
        ),
    ):
        with pytest.raises(UsageError) as refused:
            export(timeline, tmp_path / name, table=wanted)
        assert str(refused.value) == message


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"]


def test_text_that_a_spreadsheet_would_evaluate_gets_an_apostrophe(tmp_path):
    harmless = ["a=1", "", None, "'=1"]
    count = len(FORMULAS) + len(harmless)
    timeline = timeline_from_text(" ".join(f"F{number}" for number in range(count)))
    named = timeline.with_spans(timeline.spans.with_columns(pl.Series("name", [*FORMULAS, *harmless])))
    export(named, tmp_path / "plain.csv")
    export(named, tmp_path / "safe.csv", csv_safe=True)
    export(named, tmp_path / "ranks.csv", table="ranks", csv_safe=True)
    plain, safe = (pl.read_csv(tmp_path / f"{name}.csv") for name in ("plain", "safe"))
    assert plain["name"].to_list() == [*FORMULAS, *harmless]
    assert safe["name"].to_list() == [*(f"'{text}" for text in FORMULAS), *harmless]
    assert safe.drop("name").equals(plain.drop("name"))


def test_formulas_are_an_option_of_csv_alone(tmp_path):
    for name, words in (("a.parquet", {}), ("a.svg", {"ranks": [0]}), ("a.json", {"table": "spans"})):
        with pytest.raises(UsageError, match="--csv-safe"):
            export(timeline_from_text("F0"), tmp_path / name, csv_safe=True, **words)
