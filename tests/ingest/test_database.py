"""Reading SQLite files that are damaged, locked or have another schema."""

import os
import shutil
import sqlite3
import sys
from contextlib import closing

import polars as pl
import pytest

from stagescope.ingest.database import Database, Fault, has_tables, is_database
from stagescope.ingest.sqlite_access import Deadline
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limits_in_force

NUMBERS = "SELECT t.rowid, t.a FROM N t"
PAGE = 4096


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "numbers of a % run?.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE N (a INTEGER, b TEXT)")
        connection.executemany("INSERT INTO N VALUES (?, ?)", [(n, "x" * 100) for n in range(2_000)])
        connection.commit()
    return path


def edit(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


def test_rows_omit_the_rowid(path):
    with Database(path) as database:
        assert database.rows("N", f"{NUMBERS} WHERE t.a < ?", [3]) == [(0,), (1,), (2,)]
        assert database.faults == []


def test_a_missing_table_reads_as_empty_and_is_recorded_as_fault(path):
    with Database(path) as database:
        assert database.rows("M", "SELECT t.rowid FROM M t") == []
        assert database.faults == [Fault("M", "is missing")]
        assert not database.has("M")


def test_a_missing_column_reads_as_null_and_is_recorded_as_fault(path):
    with Database(path) as database:
        columns = database.columns("N", "t", ("a", "c"))
        assert database.rows("N", f"SELECT t.rowid, {columns} FROM N t LIMIT 1") == [(0, None)]  # noqa: S608
        assert database.faults == [Fault("N", "has no column c")]


def test_rows_before_and_after_a_damaged_page_are_recovered(path):
    with path.open("r+b") as file:
        file.seek(20 * PAGE)
        file.write(b"\xff" * PAGE)
    with Database(path) as database:
        numbers = [number for (number,) in database.rows("N", NUMBERS)]
        (fault,) = database.faults
    assert numbers[0] == 0
    assert numbers[-1] == 1_999
    assert numbers == sorted(numbers)
    assert 1_900 < len(numbers) < 2_000
    assert (
        fault.text
        == f"cannot be read to its end (database disk image is malformed): {len(numbers)} rows were saved"
    )


def test_a_truncated_file_is_rejected_or_yields_its_beginning(path):
    os.truncate(path, 10 * PAGE)
    try:
        with Database(path) as database:
            rows = database.rows("N", NUMBERS)
            assert database.faults
            assert rows == [(n,) for n in range(len(rows))]
    except InputError as error:
        assert "SQLite cannot read it" in str(error)  # noqa: PT017 - either is right, silence is not


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", r"it is empty \(0 bytes\)"), (b"PK\x03\x04 something else", "it begins with b'PK")],
)
def test_a_file_that_is_not_a_database_is_rejected_with_its_first_bytes(tmp_path, content, words):
    path = tmp_path / "x.db"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"not an SQLite database: {words}"):
        Database(path)
    assert not has_tables(path, ["N"])


def test_a_missing_file_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*absent\.db: No such file"):
        Database(tmp_path / "absent.db")
    assert not list(tmp_path.iterdir())


def test_a_database_locked_by_a_writer_is_rejected(path, monkeypatch):
    monkeypatch.setattr("stagescope.ingest.sqlite_access.BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InputError, match="SQLite cannot read it: database is locked"):
            Database(path)


def test_the_write_ahead_log_is_read(path):
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO N VALUES (5000, '')")
        writer.commit()
        with Database(path) as database:
            assert database.rows("N", f"{NUMBERS} WHERE t.a = 5000") == [(5000,)]
            assert not database.ignores_log


def test_a_database_without_its_log_is_read_without_writing_beside_it(path):
    edit(path, "PRAGMA journal_mode = WAL")
    with Database(path) as database:
        assert len(database.rows("N", NUMBERS)) == 2_000
        assert database.diagnostics() == []
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupted_write_is_refused_with_what_to_do(path):
    path.with_name(f"{path.name}-journal").write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(4088))
    with pytest.raises(InputError, match="has to undo an interrupted write from its journal"):
        Database(path)


def test_a_write_ahead_log_in_a_read_only_directory_is_skipped_with_an_error(path):
    closed = path.parent / "closed"
    closed.mkdir()
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO N VALUES (5000, '')")
        writer.commit()
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{path}{suffix}", closed / f"{path.name}{suffix}")
    closed.chmod(0o555)
    try:
        if os.access(closed, os.W_OK):
            pytest.skip("this user, such as root, may write to every directory")
        with Database(closed / path.name) as database:
            assert len(database.rows("N", NUMBERS)) == 2_000
            (note,) = database.diagnostics(3)
        assert (note.severity, note.rank) == ("error", 3)
        assert note.code == "database.log_skipped"
        assert len(list(closed.iterdir())) == 2
    finally:
        closed.chmod(0o755)


def test_invalid_utf_8_does_not_hide_other_rows(tmp_path):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE S (value TEXT)")
        connection.execute("INSERT INTO S VALUES (CAST(x'ff41' AS TEXT)), ('fine')")
        connection.commit()
    with Database(path) as database:
        assert database.rows("S", "SELECT t.rowid, t.value FROM S t") == [("\ufffdA",), ("fine",)]


ENDLESS = (
    "CREATE VIEW V AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS a FROM n"
)


def test_views_are_not_read_because_they_may_be_infinite(path):
    edit(path, ENDLESS, "CREATE VIRTUAL TABLE T USING fts5(a)")
    with Database(path) as database:
        assert database.frame("V", ("a",), {"a": pl.Int64}).is_empty()
        assert not database.has("T")
        assert [fault.table for fault in database.faults] == ["V", "T"]
        assert "is a view or a virtual table" in database.faults[0].text


def test_a_query_that_takes_too_long_ends_with_the_name_of_the_limit(path, monkeypatch):
    endless = "t.a IN (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n)"
    monkeypatch.setattr(Deadline, "is_past", lambda _: True)
    with Database(path) as database, limits_in_force({"query": 7}), pytest.raises(InputError) as error:
        database.rows("N", f"{NUMBERS} WHERE {endless}")
    assert "table N: the time of one query is more than the limit of 7 s" in str(error.value)
    assert "--limit query=" in error.value.hint


def test_values_of_other_types_and_impossible_times_are_null_and_recorded_as_fault(path):
    edit(
        path,
        "UPDATE N SET a = CASE rowid WHEN 1 THEN 'x' WHEN 2 THEN x'00' WHEN 3 THEN 9e99 WHEN 4 THEN 1 << 62 END",
    )
    with Database(path) as database:
        frame = database.frame("N", ("a", "b"), {"start_ns": pl.Int64, "b": pl.Int32})
        assert frame["start_ns"].null_count() == 2_000
        assert database.faults == [
            Fault("N", "has 2004 values that do not fit, which were ignored (start_ns, b)")
        ]
        assert database.frame("N", ("a",), {"count": pl.Int64})["count"].drop_nulls().to_list() == [2**62]


def test_rows_that_refer_to_missing_rows_are_counted(path):
    edit(path, "CREATE TABLE M (id INTEGER PRIMARY KEY)", "INSERT INTO M SELECT a FROM N WHERE a >= 30")
    with Database(path) as database:
        database.check_references("N", "a", "M", "id")
        database.check_references("N", "absent", "M", "id")
        (fault,) = database.faults
    assert (fault.severity, fault.code) == ("warning", "database.contradictory")
    assert fault.text == "has 30 rows with a of rows that table M does not have"


def test_tables_with_an_invalid_declaration_do_not_hide_the_others(path):
    edit(
        path, "CREATE TABLE M (a)", "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'M'",
    )  # fmt: skip
    with Database(path) as database:
        assert len(database.rows("N", NUMBERS)) == 2_000
        assert "malformed database schema" in database.faults[0].text


def test_a_schema_whose_names_are_not_text_does_not_hide_the_tables(path):
    edit(
        path, "CREATE TABLE MMMM (a)", "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'nonsense' WHERE name = 'MMMM'",
    )  # fmt: skip
    path.write_bytes(path.read_bytes().replace(b"MMMM", b"\xff\xfe\xc9M"))
    with Database(path) as database:
        assert len(database.rows("N", NUMBERS)) == 2_000
        # Before Python 3.11, sqlite3 has no message that is not valid UTF-8.
        message = "malformed database schema (\ufffd" if sys.version_info >= (3, 11) else "is no valid text"
        assert message in database.faults[0].text


def test_an_index_that_contradicts_its_table_is_recorded_as_fault(path, monkeypatch):
    edit(path, "CREATE INDEX I ON N (a)")
    with Database(path) as database:
        database.check()
        assert database.faults == []
    content = path.read_bytes()
    place = content.index(b"x" * 100) - 1  # the last byte of the integer before the first text
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with Database(path) as database:
        database.check()
        assert [fault.sentence.partition(":")[0] for fault in database.faults] == ["the database is damaged"]
        monkeypatch.setattr("stagescope.ingest.database.CHECKED_BYTES", 0)
    with Database(path) as database:
        database.check()
        assert database.faults == []


def test_tables_of_a_large_database_are_checked_before_they_are_read(path, monkeypatch):
    monkeypatch.setattr("stagescope.ingest.database.CHECKED_BYTES", 0)
    edit(path, "CREATE TABLE Other (a)", "INSERT INTO Other SELECT a FROM N")
    with Database(path) as database:
        database.check()
        assert len(database.rows("N", NUMBERS)) == 2_000
        assert database.faults == []
    swap_rowids(path)
    with Database(path) as database:
        database.rows("Other", "SELECT t.rowid, t.a FROM Other t")
        assert database.faults == []
        database.rows("N", NUMBERS)
        assert "out of order" in database.faults[0].text
    monkeypatch.setattr("stagescope.ingest.database.CHECK_SECONDS", 0.0)
    with Database(path) as database:
        database.rows("N", NUMBERS)
        assert not [fault for fault in database.faults if "check" in fault.text]


def swap_rowids(path):
    """Exchange two neighboring rows of table N, which a query reads without an error (fileformat.html, 1.6)."""
    content = bytearray(path.read_bytes())
    leaf = 20 * PAGE
    assert content[leaf] == 13
    assert b"x" * 100 in content[leaf : leaf + PAGE]
    first, second = slice(leaf + 8, leaf + 10), slice(leaf + 10, leaf + 12)
    content[first], content[second] = content[second], content[first]
    path.write_bytes(content)


def test_tables_that_share_their_pages_are_not_read(path):
    edit(
        path, "CREATE TABLE M (a)", "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'N') WHERE name = 'M'",
    )  # fmt: skip
    with Database(path) as database:
        assert database.rows("N", NUMBERS) == []
        assert "shares its pages with another table" in database.faults[0].text


def test_faults_become_error_diagnostics_of_the_rank(path):
    with Database(path) as database:
        database.rows("TASK", "")
        (row,) = database.diagnostics(3)
    assert (row.severity, row.rank, row.source, row.location) == ("error", 3, str(path), "table TASK")
    assert (row.code, row.message) == ("database.damaged", "table TASK is missing")


def test_a_database_is_recognized_by_its_first_bytes(path):
    assert is_database(path.read_bytes()[:100])
    assert not is_database(b"SQLite format 2\0")
