"""Read-only access to a profiler's SQLite file that survives missing tables and damaged pages.

A missing table or column reads as empty and damaged pages lose only their rows; both are recorded in
`Database.faults`.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

MAGIC = b"SQLite format 3\0"
WAL_VERSION = 2
WAL_VERSION_AT = 18
"""Header byte that marks a database in write-ahead-log mode (https://sqlite.org/fileformat.html, 1.3)."""

BUSY_SECONDS = 2.0
Row = tuple[Any, ...]


class Fault(NamedTuple):
    """A part of one table that could not be read."""

    table: str
    text: str


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
        self._connection, self._columns = self._open()

    def __enter__(self) -> Self:
        """Return the open database."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._connection.close()

    def diagnostics(self, rank: int) -> list[Diagnostic]:
        """Return one error of `rank` per part that could not be read."""
        source = str(self.path)
        found = [
            Diagnostic(
                "error",
                f"table {fault.table} {fault.text}",
                source,
                rank,
                f"table {fault.table}",
                code="database.damaged",
            )
            for fault in self.faults
        ]
        if self.ignores_log:
            text = "the write-ahead log (-wal) cannot be read in a directory without write access; its rows are missing"
            found.append(Diagnostic("error", text, source, rank, code="database.log_skipped"))
        return found

    def has(self, table: str) -> bool:
        """Return whether the database has a table."""
        return table in self._columns

    def columns(self, table: str, alias: str, names: Sequence[str]) -> str:
        """Return a column list for a SELECT, with NULL in place of columns that the table lacks."""
        present = self._columns.get(table, frozenset())
        missing = [name for name in names if name not in present]
        if missing and present:
            self._note(table, f"has no column {', '.join(missing)}")
        return ", ".join(f"{alias}.{name}" if name in present else "NULL" for name in names)

    def rows(self, table: str, query: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query over `table`, without the rowid.

        `query` must alias the table as t, select t.rowid first, and have no ORDER BY. If a page is damaged, the rows
        before and after it are returned.
        """
        if not self.has(table):
            self._note(table, "is missing")
            return []
        try:
            return [row[1:] for row in self._connection.execute(query, parameters).fetchall()]
        except sqlite3.DatabaseError as reason:
            # Reading from both ends recovers everything but the damaged pages; the rowid removes duplicates.
            found = self._until_damage(f"{query} ORDER BY t.rowid", parameters)
            found |= self._until_damage(f"{query} ORDER BY t.rowid DESC", parameters)
            self._note(table, f"cannot be read to its end ({reason}): {len(found)} rows were saved")
            return [found[rowid] for rowid in sorted(found)]

    def _until_damage(self, query: str, parameters: Sequence[object]) -> dict[int, Row]:
        found: dict[int, Row] = {}
        try:
            for row in self._connection.execute(query, parameters):
                found[row[0]] = row[1:]
        except sqlite3.DatabaseError:  # the caller records the fault
            return found
        return found

    def _note(self, table: str, text: str) -> None:
        fault = Fault(table, text)
        if fault not in self.faults:
            self.faults.append(fault)

    def _open(self) -> tuple[sqlite3.Connection, dict[str, frozenset[str]]]:
        """Return a connection and the columns of every table.

        SQLite cannot read a write-ahead log in a read-only directory, because it has to write the log's index (-shm)
        there. In that case only the main file is read (`immutable=1`).
        """
        try:
            return _connect(self.path, "mode=ro")
        except sqlite3.OperationalError as reason:
            if "unable to open" not in str(reason) or not _has_log(self.path):
                raise _refusal(self.path, reason) from None
        except sqlite3.DatabaseError as reason:
            raise _refusal(self.path, reason) from None
        # In WAL mode an absent -wal file means that everything is in the main file, and nothing is missing.
        self.ignores_log = self.path.with_name(f"{self.path.name}-wal").exists()
        try:
            return _connect(self.path, "mode=ro&immutable=1")
        except sqlite3.DatabaseError as reason:
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


def _has_log(path: Path) -> bool:
    return _head(path)[WAL_VERSION_AT : WAL_VERSION_AT + 1] == bytes([WAL_VERSION])


def _connect(path: Path, mode: str) -> tuple[sqlite3.Connection, dict[str, frozenset[str]]]:
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=BUSY_SECONDS)
    connection.text_factory = _text
    try:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        return connection, {name: _columns_of(connection, name) for name in tables}
    except sqlite3.DatabaseError:
        connection.close()
        raise


def _columns_of(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    with closing(connection.execute("SELECT name FROM pragma_table_info(?)", (table,))) as found:
        return frozenset(name for (name,) in found)


def _text(value: bytes) -> str:
    """Return text for any bytes: one name that is not valid UTF-8 must not make the other rows unreadable."""
    return value.decode("utf-8", "replace")


def _refusal(path: Path, reason: sqlite3.DatabaseError) -> InputError:
    return InputError.damaged(path, f"SQLite cannot read it: {reason}")
