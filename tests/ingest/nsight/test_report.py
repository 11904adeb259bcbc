"""Reading exported reports of several versions, also damaged ones."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from nsight_reports import EPOCH_NS, Planted, thread, write_report
from stagescope.ingest import database_blocks as module
from stagescope.ingest.device_ranges.trace import process_of
from stagescope.ingest.nsight.report import KERNELS, RANGES, Report, is_report
from stagescope.vocabulary.errors import InputError


@pytest.fixture
def planted():
    found = Planted()
    found.range("F0.0", 10, 20)
    found.range("B0.0", 30, 40)
    for number in range(50):
        found.kernel(12, 100 * number, 100 * number + 10)
    return found


def column(report, table, name):
    return np.concatenate([block[name] for block in report.blocks(table, (name,))]).tolist()


@pytest.mark.parametrize("texts", [True, False])
def test_range_names_are_inline_or_string_ids(tmp_path, planted, texts):
    with Report(write_report(tmp_path / "a.sqlite", planted, texts=texts)) as report:
        ranges, still_open = report.ranges()
    assert ranges.rows() == [("F0.0", thread(100), 10, 20), ("B0.0", thread(100), 30, 40)]
    assert still_open == 0


def test_a_range_that_is_still_open_at_the_end_is_counted(tmp_path, planted):
    edit = "UPDATE NVTX_EVENTS SET end = NULL WHERE text = 'B0.0'"
    with Report(write_report(tmp_path / "a.sqlite", planted, drop=[edit])) as report:
        ranges, still_open = report.ranges()
    assert (ranges["name"].to_list(), still_open) == (["F0.0"], 1)


def test_facts_have_host_devices_and_session_start_if_present(tmp_path, planted):
    with Report(write_report(tmp_path / "a.sqlite", planted)) as report:
        assert report.facts()[:2] == ("node1", EPOCH_NS)
        assert report.facts().devices[3] == "NVIDIA H100"
    bare = ["DROP TABLE TARGET_INFO_SESSION_START_TIME", "DROP TABLE TARGET_INFO_GPU",
            "DROP TABLE TARGET_INFO_SYSTEM_ENV"]  # fmt: skip
    with Report(write_report(tmp_path / "b.sqlite", planted, drop=bare)) as report:
        assert report.facts() == (None, None, {}, None)


def test_columns_are_read_in_blocks_of_any_size(tmp_path, planted, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    with Report(write_report(tmp_path / "a.sqlite", planted)) as report:
        assert column(report, KERNELS, "start") == [100 * number for number in range(50)]


def test_columns_and_tables_missing_from_older_exports_read_as_absent(tmp_path, planted):
    old = [f"ALTER TABLE {KERNELS} DROP COLUMN globalPid", f"ALTER TABLE {RANGES} DROP COLUMN textId"]
    with Report(write_report(tmp_path / "a.sqlite", planted, drop=old)) as report:
        assert set(column(report, KERNELS, "globalPid")) == {-1}
        assert list(report.blocks("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ("start",))) == []
        assert report.ranges()[0].height == 2


def test_rows_after_a_damaged_page_are_dropped(tmp_path, planted):
    for _ in range(20_000):
        planted.kernel(12, 0, 10)
    path = write_report(tmp_path / "a.sqlite", planted)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 3 // 5])
    with Report(path) as report:
        count = sum(len(block["start"]) for block in report.blocks(KERNELS, ("start",)))
        assert count < 20_050
        assert [fault.table for fault in report.faults] == ["sqlite_master", KERNELS]


@pytest.mark.parametrize("content", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 2000])
def test_a_file_that_is_not_a_database_is_rejected(tmp_path, content):
    (tmp_path / "a.sqlite").write_bytes(content)
    with pytest.raises(InputError):
        Report(tmp_path / "a.sqlite")


def test_a_report_is_recognized_by_its_tables(tmp_path, planted):
    assert is_report(write_report(tmp_path / "a.sqlite", planted))
    with closing(sqlite3.connect(tmp_path / "b.sqlite")) as other:
        other.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    assert not is_report(tmp_path / "b.sqlite")


def test_the_process_is_part_of_thread_and_process_ids():
    assert (process_of(np.array([thread(7, 3), thread(7, 0)])) & 0xFFFFFF).tolist() == [7, 7]


@pytest.mark.parametrize("epoch_ns", [-5, 0, 4_200_000_000_000_000_000])
def test_an_impossible_session_start_is_reported(tmp_path, planted, epoch_ns):
    with Report(write_report(tmp_path / "a.sqlite", planted, epoch_ns=epoch_ns)) as report:
        assert report.facts()[1] is None
        assert [fault.text for fault in report.faults] == [
            f"has the impossible epoch {epoch_ns} ns, which was ignored"
        ]
