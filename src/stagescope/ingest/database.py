"""A SQLite file of a profiler, read-only: whatever of its tables can be read, and what could not.

A table or column that a file lacks reads as empty, damaged pages cost the rows on them, and both are remembered in
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
"""Where the header says that the file is written through a log (https://sqlite.org/fileformat.html, 1.3)."""

BUSY_SECONDS = 2.0
Row = tuple[Any, ...]


class Fault(NamedTuple):
    """What could not be read of one table."""

    table: str
    text: str


class Database:
    """A profile that is open for reading; use it in a `with` statement.

    Raises InputError where the file is no database, holds nothing or is locked by a program that writes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self.ignores_log = False
        """Whether the directory allows no reading of what stands in the file's log alone."""
        _check_head(path)
        self._connection, self._columns = self._open()

    def __enter__(self) -> Self:
        """Return the database itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._connection.close()

    def diagnostics(self, rank: int) -> list[Diagnostic]:
        """Return what could not be read, as errors of a rank."""
        source = str(self.path)
        found = [
            Diagnostic("error", f"table {fault.table} {fault.text}", source, rank, f"table {fault.table}")
            for fault in self.faults
        ]
        if self.ignores_log:
            text = "its log (-wal) cannot be followed in a directory without write access; what it holds is missing"
            found.append(Diagnostic("error", text, source, rank))
        return found

    def has(self, table: str) -> bool:
        """Tell whether the database has a table."""
        return table in self._columns

    def columns(self, table: str, alias: str, names: Sequence[str]) -> str:
        """Return columns of a table for a SELECT, NULL in the place of those that the table lacks."""
        present = self._columns.get(table, frozenset())
        missing = [name for name in names if name not in present]
        if missing and present:
            self._note(table, f"has no column {', '.join(missing)}")
        return ", ".join(f"{alias}.{name}" if name in present else "NULL" for name in names)

    def rows(self, table: str, query: str, parameters: Sequence[object] = ()) -> list[Row]:
        """Return the rows of a query over `table`; `query` calls it t, selects t.rowid first and has no ORDER BY.

        The rowid is left out of the rows. Where a page is damaged the rows before it and those after it are
        returned.
        """
        if not self.has(table):
            self._note(table, "is missing")
            return []
        try:
            return [row[1:] for row in self._connection.execute(query, parameters).fetchall()]
        except sqlite3.DatabaseError as reason:
            found = self._until_damage(f"{query} ORDER BY t.rowid", parameters)
            found |= self._until_damage(f"{query} ORDER BY t.rowid DESC", parameters)
            self._note(table, f"cannot be read to its end ({reason}): {len(found)} rows were saved")
            return [found[rowid] for rowid in sorted(found)]

    def _until_damage(self, query: str, parameters: Sequence[object]) -> dict[int, Row]:
        found: dict[int, Row] = {}
        try:
            for row in self._connection.execute(query, parameters):
                found[row[0]] = row[1:]
        except sqlite3.DatabaseError:  # the caller tells it
            return found
        return found

    def _note(self, table: str, text: str) -> None:
        fault = Fault(table, text)
        if fault not in self.faults:
            self.faults.append(fault)

    def _open(self) -> tuple[sqlite3.Connection, dict[str, frozenset[str]]]:
        """Return a connection and the columns of every table.

        A log beside the file cannot be followed in a directory that nobody may write to, because its index would
        have to be written there. The file alone is read then.
        """
        try:
            return _connect(self.path, "mode=ro")
        except sqlite3.OperationalError as reason:
            if "unable to open" not in str(reason) or not _has_log(self.path):
                raise _refusal(self.path, reason) from None
        except sqlite3.DatabaseError as reason:
            raise _refusal(self.path, reason) from None
        self.ignores_log = self.path.with_name(f"{self.path.name}-wal").exists()
        try:
            return _connect(self.path, "mode=ro&immutable=1")
        except sqlite3.DatabaseError as reason:
            raise _refusal(self.path, reason) from None


def is_database(head: bytes) -> bool:
    """Tell whether a file begins as an SQLite database does."""
    return head.startswith(MAGIC)


def has_tables(path: Path, names: Sequence[str]) -> bool:
    """Tell whether a file is a database with all the tables named."""
    try:
        with Database(path) as database:
            return all(map(database.has, names))
    except InputError:
        return False


def _check_head(path: Path) -> None:
    """Raise InputError for a file that cannot be a database; SQLite takes an empty one for a new database."""
    head = _head(path)
    if not is_database(head):
        begins = f"it begins with {head[:12]!r}" if head else "it is empty (0 bytes)"
        raise InputError.damaged(path, f"no SQLite database: {begins}")


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
    """Return text whatever its bytes are: one name that is no UTF-8 must not hide the others."""
    return value.decode("utf-8", "replace")


def _refusal(path: Path, reason: sqlite3.DatabaseError) -> InputError:
    return InputError.damaged(path, f"SQLite cannot read it: {reason}")
