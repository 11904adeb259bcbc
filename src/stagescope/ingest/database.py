"""Read-only access to a profiler's SQLite file that survives missing tables and damaged pages.

A missing table or column reads as empty and damaged pages lose only their rows; both are recorded in
`Database.faults`.
"""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.ingest.sqlite_access import FAILURES, Deadline, Schema, connect, failure_text
from stagescope.ingest.typed_rows import typed_rows
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import beyond

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

MAGIC = b"SQLite format 3\0"
WAL_VERSION = 2
WAL_VERSION_AT = 18
"""Header byte that marks a database in write-ahead-log mode (https://sqlite.org/fileformat.html, 1.3)."""

CHECKED_BYTES, CHECK_SECONDS = 4 << 20, 3.0
"""SQLite checks about 250 MiB in a second; what is needed of a large profile is read in a tenth of that time. Of files
that are larger, only the tables that are read are checked, for as many seconds in all."""

Row = tuple[Any, ...]


class Fault(NamedTuple):
    """A part of one table that could not be read or contradicts another table; of the whole if `table` is empty."""

    table: str
    text: str
    severity: str = "error"
    code: str = "database.damaged"

    @property
    def where(self) -> str:
        """The table, or the database."""
        return f"table {self.table}" if self.table else "the database"

    @property
    def sentence(self) -> str:
        """What is wrong, and where."""
        return f"{self.where} {self.text}"

    def diagnostic(self, source: str, rank: int | None = None) -> Diagnostic:
        """Return the fault of a database as a diagnostic."""
        return Diagnostic(self.severity, self.sentence, source, rank, self.where, code=self.code)


class Database:
    """A profile that is open for reading; use it in a `with` statement.

    Raises InputError if the file is not a database, is empty, or is locked by a program that writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.ignores_log = False
        """Whether rows that exist only in the write-ahead log are missing, because the directory is read-only."""
        _check_head(path)
        self._deadline = Deadline()
        self._unchecked_seconds = CHECK_SECONDS
        self._checked: set[str] = set()
        self._connection, self._schema = self._open()
        if self._schema.fault:
            self.note("sqlite_master", self._schema.fault)

    def __enter__(self) -> Self:
        """Return the open database."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._connection.close()

    def diagnostics(self, rank: int | None = None) -> list[Diagnostic]:
        """Return one diagnostic of `rank` per fault."""
        source = str(self.path)
        found = [fault.diagnostic(source, rank) for fault in self.faults]
        if self.ignores_log:
            text = "the write-ahead log (-wal) cannot be read in a directory without write access; its rows are missing"
            found.append(Diagnostic("error", text, source, rank, code="database.log_skipped"))
        return found

    @property
    def tables(self) -> frozenset[str]:
        """The names of all tables, and of views in the place of tables."""
        return frozenset({*self._schema.columns, *self._schema.refused})

    def has(self, table: str) -> bool:
        """Return whether the database has a table; anything else with its name becomes a fault."""
        if table in self._schema.refused:
            self.note(table, self._schema.refused[table])
        return table in self._schema.columns

    def columns(self, table: str, alias: str, names: Sequence[str]) -> str:
        """Return a column list for a SELECT, with NULL in place of columns that the table lacks."""
        present = self._schema.columns.get(table, frozenset())
        missing = [name for name in names if name not in present]
        if missing and table in self._schema.columns:
            self.note(table, f"has no column {', '.join(missing)}")
        return ", ".join(f"{alias}.{name}" if name in present else "NULL" for name in names)

    def frame(self, table: str, columns: Sequence[str], schema: Mapping[str, Any]) -> pl.DataFrame:
        """Return `columns` of a table with the names and types of `schema`, in the same order.

        Empty if there is no such table. Values that do not fit are null in the result, and become a fault.
        """
        if not self.has(table):
            return pl.DataFrame(schema=dict(schema))
        query = f"SELECT t.rowid, {self.columns(table, 't', columns)} FROM {table} t"  # noqa: S608 - declared
        return self.typed(table, self.rows(table, query), schema)

    def typed(self, table: str, rows: Sequence[Row], schema: Mapping[str, Any]) -> pl.DataFrame:
        """Return rows of `table` with the names and types of `schema`; values that do not fit become a fault."""
        found = typed_rows(rows, schema)
        if found.misfits:
            text = (
                f"has {found.misfits} values that do not fit, which were ignored ({', '.join(found.columns)})"
            )
            self.note(table, text)
        return found.frame

    def rows(self, table: str, query: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query over `table`, without the rowid.

        `query` must alias the table as t, select t.rowid first, and have no ORDER BY. If a page is damaged, the rows
        before and after it are returned; a row that is found several times is returned once. Raises InputError if the
        query takes longer than the limit `query`.
        """
        if not self.has(table):
            if table not in self._schema.refused:
                self.note(table, "is missing")
            return []
        self.check_table(table)
        try:
            fetched = self.execute(query, parameters).fetchall()
        except FAILURES as reason:
            self.check_time(table)
            # Reading from both ends recovers everything but the damaged pages; the rowid removes duplicates.
            found = self._until_damage(table, f"{query} ORDER BY t.rowid", parameters)
            found |= self._until_damage(table, f"{query} ORDER BY t.rowid DESC", parameters)
            self.note(
                table, f"cannot be read to its end ({failure_text(reason)}): {len(found)} rows were saved"
            )
            return [found[rowid] for rowid in sorted(found)]
        once = {row[0]: row[1:] for row in fetched}
        if len(once) < len(fetched):
            self.note(table, f"has {len(fetched) - len(once)} rows several times, which were used once")
        return list(once.values())

    def check(self) -> None:
        """Add a fault if SQLite finds the database damaged, also where the damaged part would be read without an error.

        It compares every page, and every index with its table. Of large databases, for which this would take longer
        than to read what is needed of them, each table is checked before it is read, without its indexes.
        """
        if self._schema.fault or self._is_large:
            return
        found = self._reported("PRAGMA integrity_check(1)", CHECK_SECONDS)
        if found is not None:
            self.note("", f"is damaged: SQLite's check reports {found!r}")

    @property
    def _is_large(self) -> bool:
        return self.path.stat().st_size > CHECKED_BYTES

    def check_table(self, table: str) -> None:
        """Add a fault if SQLite finds a table of a large database damaged, before it is read for the first time."""
        if table in self._checked or self._schema.fault or not self._is_large or self._unchecked_seconds <= 0:
            return
        self._checked.add(table)
        begin = time.monotonic()
        quoted = table.replace('"', '""')
        found = self._reported(f'PRAGMA quick_check("{quoted}")', self._unchecked_seconds)
        self._unchecked_seconds -= time.monotonic() - begin
        if found is not None:
            self.note(table, f"is damaged: SQLite's check reports {found!r}")

    def _reported(self, check: str, seconds: float) -> str | None:
        """Return what a check of SQLite reports; None if it finds nothing, or nothing in time."""
        self._deadline.restart(seconds)
        try:
            self._connection.execute("PRAGMA ignore_check_constraints = ON")
            found = self._connection.execute(check).fetchone()[0]
        except FAILURES as reason:
            found = "ok" if self._deadline.is_past() else failure_text(reason)
        return None if found == "ok" else found.splitlines()[-1]

    def check_references(self, table: str, column: str, other: str, key: str) -> None:
        """Add a fault if rows of a table have a value in `column` that no row of the table `other` has as `key`."""
        if not (self._has_column(table, column) and self._has_column(other, key)):
            return
        query = (
            f"SELECT 0, count(*) FROM {table} t WHERE t.{column} NOT IN "  # noqa: S608 - declared names
            f"(SELECT o.{key} FROM {other} o WHERE o.{key} IS NOT NULL)"
        )
        try:
            ((_, count),) = self.execute(query).fetchall()
        except FAILURES:  # damage is recorded where the tables are read
            self.check_time(table)
            return
        if count:
            text = f"has {count} rows with {column} of rows that table {other} does not have"
            self.note(table, text, "warning", "database.contradictory")

    def _has_column(self, table: str, column: str) -> bool:
        return column in self._schema.columns.get(table, ())

    def execute(self, query: str, parameters: Sequence[object] = ()) -> sqlite3.Cursor:
        """Return the cursor of a query, which ends with an error after the limit `query`."""
        self._deadline.restart()
        return self._connection.execute(query, parameters)

    def _until_damage(self, table: str, query: str, parameters: Sequence[object]) -> dict[int, Row]:
        found: dict[int, Row] = {}
        try:
            for row in self.execute(query, parameters):
                found[row[0]] = row[1:]
        except FAILURES:  # the caller records the fault
            self.check_time(table)
        return found

    def check_time(self, table: str) -> None:
        """Raise InputError if the query that failed was interrupted, because it had taken too long."""
        if self._deadline.is_past():
            raise beyond("query", f"{self.path}, table {table}")

    def note(self, table: str, text: str, severity: str = "error", code: str = "database.damaged") -> None:
        """Add a fault, once."""
        fault = Fault(table, text, severity, code)
        if fault not in self.faults:
            self.faults.append(fault)

    def _open(self) -> tuple[sqlite3.Connection, Schema]:
        """Return a connection and the schema.

        SQLite creates files beside a database in write-ahead-log mode, even to read it, and cannot do so in a read-only
        directory. Then only the main file is read (`immutable=1`), and if there is no log: nothing is missing then.
        """
        has_log = self.path.with_name(f"{self.path.name}-wal").exists()
        if has_log or not _uses_log(self.path):
            try:
                return connect(self.path, "mode=ro", self._deadline)
            except sqlite3.OperationalError as reason:
                if "unable to open" not in str(reason) or not _uses_log(self.path):
                    raise _refusal(self.path, reason) from None
            except FAILURES as reason:
                raise _refusal(self.path, reason) from None
        self.ignores_log = has_log
        try:
            return connect(self.path, "mode=ro&immutable=1", self._deadline)
        except FAILURES as reason:
            raise _refusal(self.path, reason) from None


def is_database(head: bytes) -> bool:
    """Return whether a file begins like an SQLite database."""
    return head.startswith(MAGIC)


def has_tables(path: Path, names: Sequence[str]) -> bool:
    """Return whether a file is a database that has all the named tables."""
    try:
        with Database(path) as database:
            return all(map(database.has, names))
    except InputError:
        return False


def _check_head(path: Path) -> None:
    """Raise InputError for a file that cannot be a database; SQLite would treat an empty file as a new database."""
    head = _head(path)
    if not is_database(head):
        begins = f"it begins with {head[:12]!r}" if head else "it is empty (0 bytes)"
        raise InputError.damaged(path, f"not an SQLite database: {begins}")


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(WAL_VERSION_AT + 1)
    except OSError as reason:
        raise InputError.cannot_read(path, reason) from None


def _uses_log(path: Path) -> bool:
    return _head(path)[WAL_VERSION_AT : WAL_VERSION_AT + 1] == bytes([WAL_VERSION])


def _refusal(path: Path, reason: Exception) -> InputError:
    text = f"SQLite cannot read it: {failure_text(reason)}"
    if "readonly" in text:
        text = (
            f"SQLite has to undo an interrupted write from its journal ({path.name}-journal), and "
            "files are not changed here: open a copy of both with the sqlite3 program once"
        )
    return InputError.damaged(path, text)
