"""Reports of Nsight Systems through the commands: complete runs and invalid reports."""

import sqlite3
from contextlib import closing

import polars as pl
import pytest

import stagescope
from drawing import timeline_from_text
from nsight_reports import ENGINE, EPOCH_NS, Planted, write_report
from stagescope.cli import main
from stagescope.ingest.ascend import reader as ascend
from stagescope.ingest.nsight.reader import READER
from stagescope.vocabulary.errors import InputError

DRAWING = """
F0 F1 .  B0 .  B1
.  F0 B0 F1 B1 .
"""
LATE_NS = 700_000
"""Delay from launch to kernel: longer than any range, so that host times alone give a wrong result."""


@pytest.fixture
def run(tmp_path):
    """Return a directory with one report per rank of a drawn timeline; its times are device times."""
    drawn = timeline_from_text(DRAWING)
    for rank in (0, 1):
        planted = Planted()
        for row in drawn.spans.filter(pl.col("rank") == rank).iter_rows(named=True):
            start, end = row["start_ns"], row["end_ns"]
            letter = "F" if row["kind"] == "forward" else "B"
            planted.range(f"{letter}{row['stage']}.{row['microbatch']} step 0", start, end)
            tid = 1 if letter == "F" else ENGINE
            middle = (start + end) // 2
            planted.kernel(start + 1, start + LATE_NS, middle + LATE_NS, tid=tid)
            planted.kernel(end - 1, middle + LATE_NS, end + LATE_NS, tid=tid)
        write_report(tmp_path / f"rank{rank}.sqlite", planted)
    return tmp_path, drawn


def test_recovers_a_drawn_run_at_device_times(run):
    folder, drawn = run
    columns = ["rank", "kind", "stage", "microbatch", "start_ns", "end_ns"]
    shift = LATE_NS + EPOCH_NS
    wanted = drawn.spans.with_columns(pl.col("start_ns", "end_ns") + shift).select(columns)
    assert stagescope.read(folder, align=False).spans.select(columns).equals(wanted)


def test_the_commands_read_a_directory_without_options(run, capsys):
    assert main(["show", str(run[0]), "--ascii"]) == 0
    assert "Pipeline, 2 ranks, 2 micro-batches, step 0, bubble" in capsys.readouterr().out


def test_the_error_for_a_report_without_ranges_explains_what_to_record(tmp_path):
    planted = Planted()
    planted.kernel(10, 100, 200)
    path = write_report(tmp_path / "rank0.sqlite", planted, drop=["DROP TABLE NVTX_EVENTS"])
    with pytest.raises(InputError, match="it has no NVTX range") as error:
        stagescope.read(path)
    assert "nsys profile -t cuda,nvtx" in error.value.hint
    assert "--also nvtx" in error.value.hint


def test_a_truncated_report_yields_its_readable_part(run):
    folder, _ = run
    path = folder / "rank1.sqlite"
    with closing(sqlite3.connect(path)) as database:
        rows = [(9, 10, 0, 1, 7, 10**6 + n, 0, 1, 1, None) for n in range(20_000)]
        database.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
        )
        database.commit()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    timeline = stagescope.read(folder)
    assert timeline.is_partial
    errors = timeline.diagnostics.filter(pl.col("severity") == "error")["message"].to_list()
    assert any("it is truncated" in text for text in errors)
    assert any("cannot be read to its end" in text for text in errors)


def test_a_report_truncated_before_its_data_is_rejected(run):
    path = run[0] / "rank1.sqlite"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"no pipeline action in its readable part: .* it is truncated"):
        stagescope.read(path)


def test_rows_with_invalid_numbers_are_dropped(run):
    with closing(sqlite3.connect(run[0] / "rank1.sqlite")) as database:
        database.execute("UPDATE NVTX_EVENTS SET start = 'soon' WHERE text LIKE 'B1.0%'")
        database.commit()
    timeline = stagescope.read(run[0])
    assert timeline.spans.filter(pl.col("rank") == 1)["microbatch"].to_list() == [0, 1, 1]
    assert "has 1 ranges without a name or a start" in " ".join(timeline.diagnostics["message"])


def test_ranges_of_an_unknown_type_are_counted(run):
    with closing(sqlite3.connect(run[0] / "rank1.sqlite")) as database:
        database.execute("UPDATE NVTX_EVENTS SET eventType = 99 WHERE text LIKE 'B1.0%'")
        database.commit()
    timeline = stagescope.read(run[0])
    assert timeline.spans.filter(pl.col("rank") == 1)["microbatch"].to_list() == [0, 1, 1]
    found = " ".join(timeline.diagnostics["message"])
    assert "has 1 ranges of an unknown type, which were left out: 99" in found


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 2000])
def test_a_file_that_is_not_a_database_is_an_error_with_its_name(tmp_path, content):
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"rank0\.sqlite"):
        stagescope.read(path)


def test_a_report_locked_by_a_writer_is_an_error(run, monkeypatch):
    monkeypatch.setattr("stagescope.ingest.sqlite_access.BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(run[0] / "rank0.sqlite")) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match="locked"):
            stagescope.read(run[0] / "rank0.sqlite")


def test_unrelated_databases_are_not_recognized(tmp_path, run):
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE COMMUNICATION_OP (opName INTEGER)")
    head = path.read_bytes()[:4096]
    assert not READER.recognizes(path, head)
    report = run[0] / "rank0.sqlite"
    head = report.read_bytes()[:4096]
    assert [reader.recognizes(report, head) for reader in (READER, ascend.READER)] == [True, False]


def test_kernels_are_kept_on_request_with_their_actions(run):
    folder, _ = run
    assert stagescope.read(folder).kernels.is_empty()
    timeline = stagescope.read(folder, align=False, kernels=True)
    found = timeline.kernels
    key = ["rank", "kind", "stage", "microbatch", "step"]
    actions = timeline.spans.select(*key, "start_ns", "end_ns").sort("rank", "start_ns")
    owned = found.group_by(key).agg(pl.min("start_ns"), pl.max("end_ns"), pl.len()).sort("rank", "start_ns")
    assert owned.drop("len").equals(actions.cast(owned.drop("len").schema))
    assert owned["len"].unique().to_list() == [2]
    assert found["category"].unique().to_list() == ["gemm"]


def test_repeated_ranges_are_used_once(run):
    folder, _ = run
    intact = stagescope.read(folder, align=False)
    with closing(sqlite3.connect(folder / "rank1.sqlite")) as database:
        database.execute("INSERT INTO NVTX_EVENTS SELECT * FROM NVTX_EVENTS")
        database.commit()
    found = stagescope.read(folder, align=False)
    assert found.spans.equals(intact.spans)
    assert found.diagnostics.filter(code="events.repeated")["count"].to_list() == [4]
