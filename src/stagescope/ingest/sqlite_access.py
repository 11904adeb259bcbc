"""Open SQLite files read-only, so that a damaged or hostile file can neither hang nor exhaust this process.

A profile consists of plain tables. Views, virtual tables and tables that share their pages with another one are not
read: profilers write none, and a view may be infinite. A query is interrupted after the limit `query`, and no value may
be larger than the limit `string` (from Python 3.11 on).
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from stagescope.vocabulary.limits import UNLIMITED, limit

if TYPE_CHECKING:
    from pathlib import Path

BUSY_SECONDS = 2.0
STEPS_BETWEEN_CHECKS = 100_000
"""Steps of SQLite's virtual machine between two looks at the clock: about a millisecond."""

LENGTH_LIMIT, LARGEST_LENGTH = 0, 2**31 - 1
"""The number of SQLite's limit on the length of a value (SQLITE_LIMIT_LENGTH), and the largest that it can be."""

PAGE_SIZE_AT, PAGE_COUNT_AT = 16, 28
"""Places in the header (https://sqlite.org/fileformat.html, 1.3)."""

NOT_A_TABLE = "is a view or a virtual table, which profilers do not write, and was not read"
TRUNCATED = "describes a larger file: it is truncated"
SHARED_PAGES = "shares its pages with another table: the schema is damaged"


FAILURES = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What a query may raise: Python also decodes the message of an error, which may quote bytes of the file."""


def failure_text(reason: Exception) -> str:
    """Return the message of one of FAILURES.

    Before Python 3.11, the message of an error is empty if it is not valid UTF-8.
    """
    if isinstance(reason, UnicodeDecodeError):
        return reason.object.decode("utf-8", "replace")
    return str(reason) or "SQLite's message is no valid text"


class Schema(NamedTuple):
    """The columns of every table, why other objects with the name of a table are not read, and a fault of the whole."""

    columns: dict[str, frozenset[str]]
    refused: dict[str, str]
    fault: str | None = None


class Deadline:
    """Interrupts queries that take longer than the limit `query`."""

    def __init__(self) -> None:
        self._at = float("inf")

    def restart(self, longest: float | None = None) -> None:
        """Begin a query that may take `longest` seconds, by default the limit `query`."""
        seconds = limit("query") if longest is None else longest
        self._at = float("inf") if seconds == UNLIMITED else time.monotonic() + seconds

    def is_past(self) -> bool:
        """Return whether the query has taken too long; SQLite interrupts it if this returns True."""
        return time.monotonic() > self._at


def connect(path: Path, mode: str, deadline: Deadline) -> tuple[sqlite3.Connection, Schema]:
    """Return a connection, whose queries `deadline` interrupts, and the schema. Raises one of FAILURES.

    Of a file that is shorter than its header states, or whose schema is partly invalid, the rest is opened with
    `PRAGMA writable_schema`, which is meant for repairs (SQLite, btree.c: lockBtree, prepare.c: corruptSchema).
    """
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS)
    try:
        _secure(connection, deadline)
        try:
            return connection, _schema(connection)
        except sqlite3.OperationalError:  # busy, or the system refuses: not damage
            raise
        except FAILURES as reason:
            connection.execute("PRAGMA writable_schema = ON")
            fault = TRUNCATED if is_truncated(path) else f"is damaged ({failure_text(reason)})"
            return connection, _schema(connection)._replace(fault=fault)
    except BaseException:  # raised again: an open database would keep the file
        connection.close()
        raise


def is_truncated(path: Path) -> bool:
    """Return whether a file is shorter than its header states."""
    with path.open("rb") as file:
        head = file.read(PAGE_COUNT_AT + 4)
    page = int.from_bytes(head[PAGE_SIZE_AT : PAGE_SIZE_AT + 2], "big")
    pages = int.from_bytes(head[PAGE_COUNT_AT:], "big")
    return path.stat().st_size < pages * (65536 if page == 1 else page)


def _secure(connection: sqlite3.Connection, deadline: Deadline) -> None:
    connection.text_factory = _text
    connection.set_progress_handler(deadline.is_past, STEPS_BETWEEN_CHECKS)
    set_limit = getattr(connection, "setlimit", None)  # from Python 3.11 on
    if set_limit is not None:
        set_limit(LENGTH_LIMIT, min(limit("string"), LARGEST_LENGTH))
    deadline.restart()
    # A schema is data of the file: it must not call functions, and a damaged page must not be trusted.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _text(value: bytes) -> str:
    """Return text for any bytes: one name that is not valid UTF-8 must not make the other rows unreadable."""
    return value.decode("utf-8", "replace")


def _schema(connection: sqlite3.Connection) -> Schema:
    listed = connection.execute(
        "SELECT name, type, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
    ).fetchall()
    pages = Counter(page for _, kind, page in listed if kind == "table")
    columns: dict[str, frozenset[str]] = {}
    refused: dict[str, str] = {}
    for name, kind, page in listed:
        if not isinstance(name, str):
            continue
        if kind != "table" or not page:
            refused[name] = NOT_A_TABLE
        elif pages[page] > 1:
            refused[name] = SHARED_PAGES
        else:
            columns[name] = _columns_of(connection, name)
    return Schema(columns, refused)


def _columns_of(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    with closing(connection.execute("SELECT name FROM pragma_table_info(?)", (table,))) as found:
        return frozenset(name for (name,) in found)
