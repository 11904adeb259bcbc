"""Reports that were exported to a directory of Parquet files."""

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from fuzz.samples import nsight_reports
from nsight_reports import Planted, parquet_copy, write_report
from stagescope.ingest.nsight.exports import read_report
from stagescope.ingest.nsight.parquet_report import ParquetReport
from stagescope.vocabulary.errors import InputError


@pytest.fixture
def runs(tmp_path):
    """Return the same run in SQLite and in Parquet."""
    sqlite = tmp_path / "sqlite"
    sqlite.mkdir()
    nsight_reports(sqlite)
    parquet = tmp_path / "parquet"
    parquet.mkdir()
    for path in sqlite.iterdir():
        parquet_copy(path, parquet / f"{path.stem}.parquetdir")
    return sqlite, parquet


def test_parquet_is_read_like_sqlite(runs):
    sqlite, parquet = (stagescope.read(folder, align=False) for folder in runs)
    assert parquet.spans.equals(sqlite.spans)
    assert parquet.steps.equals(sqlite.steps)
    assert parquet.ranks.drop("clock", "source").equals(sqlite.ranks.drop("clock", "source"))
    assert parquet.ranks["source"].to_list() == [str(runs[1] / f"rank{rank}.parquetdir") for rank in (0, 1)]
    assert parquet.diagnostics["code"].to_list() == sqlite.diagnostics["code"].to_list()


def test_one_table_by_name_means_its_report(runs):
    whole = stagescope.read(runs[1] / "rank0.parquetdir", align=False)
    assert stagescope.read(runs[1] / "rank0.parquetdir" / "StringIds.parquet", align=False).spans.equals(
        whole.spans
    )


def test_a_table_of_spans_beside_a_report_is_no_table_of_it(runs):
    table = runs[1] / "rank0.parquetdir" / "spans.parquet"
    timeline_from_text("F0 B0").spans.write_parquet(table)
    assert stagescope.read(table).spans.height == 2


def test_a_damaged_table_is_named_and_the_rest_is_read(runs):
    (runs[1] / "rank0.parquetdir" / "CUPTI_ACTIVITY_KIND_KERNEL.parquet").write_bytes(b"PAR1")
    found = stagescope.read(runs[1], align=False).diagnostics.filter(code="database.damaged")
    assert found["rank"].to_list() == [None]
    assert found["message"][0].startswith("table CUPTI_ACTIVITY_KIND_KERNEL cannot be read (")


def test_missing_columns_and_values_of_another_type_are_named(tmp_path):
    planted = Planted()
    planted.range("F0.0", 0, 100)
    planted.kernel(10, 200, 300)
    report = parquet_copy(write_report(tmp_path / "a.sqlite", planted), tmp_path / "a.parquetdir")
    kernels = pl.read_parquet(report / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    kernels.with_columns(streamId=pl.lit("seven")).drop("globalPid").write_parquet(
        report / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    )
    opened = ParquetReport(report)
    (block,) = opened.kernels()
    assert (block["stream"].tolist(), block["process"].tolist()) == ([-1], [-1])
    assert opened.fault_sentences() == [
        "table CUPTI_ACTIVITY_KIND_KERNEL has no column globalPid",
        "table CUPTI_ACTIVITY_KIND_KERNEL has values that do not fit, which were ignored (streamId)",
    ]


def test_the_error_for_a_report_without_a_readable_table_names_the_tables(tmp_path):
    folder = tmp_path / "rank0.parquetdir"
    folder.mkdir()
    (folder / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError) as error:
        stagescope.read(folder)
    assert str(error.value) == (
        f"{folder}: none of the tables NVTX_EVENTS, CUPTI_ACTIVITY_KIND_KERNEL, CUPTI_ACTIVITY_KIND_RUNTIME, "
        "TARGET_INFO_SESSION_START_TIME can be read"
    )


def test_a_pattern_applies(runs):
    (trace,) = read_report(runs[1] / "rank0.parquetdir", "{kind}{stage}.{microbatch} step {step}")
    assert trace.spans["kind"].unique().sort().to_list() == ["backward", "forward"]
