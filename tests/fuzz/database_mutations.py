"""Mutators of SQLite databases: their cells, rows, schema, and the files beside them."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from fuzz.mutations import Mutator

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

CELLS: tuple[Any, ...] = (
    None, "", "text", "12", "1e400", b"", b"\xff\x00blob", 0, -1, 1.5, float("inf"), -float("inf"), 1e30, 2**31, 2**32,
    2**53 + 1, 2**63 - 1, -(2**63), "\ud7ff\x00", '{"a": [1, {"b": null}]}', "[" * 500, "{'name': 'forward_step'}",
    "x" * 9000,
)  # fmt: skip
"""Values of other types and sizes: SQLite stores any value in any column."""

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"


def _of_schema(change: Callable[[sqlite3.Connection, str, Random], None], *, is_revealed: bool) -> Mutator:
    """Return a mutator that changes one table with SQL; a damaged or odd database may refuse, and stays as it is."""

    def apply(path: Path, chance: Random) -> None:
        with closing(sqlite3.connect(path)) as connection:
            try:
                connection.execute("PRAGMA synchronous = OFF")
                names = [
                    name
                    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
                ]
                change(connection, chance.choice(names), chance)
                connection.commit()
            except (sqlite3.Error, IndexError, UnicodeError):
                return

    return Mutator(change.__name__, apply, is_revealed)


def _columns(connection: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    found = connection.execute("SELECT name, type FROM pragma_table_info(?)", (table,))
    return [(name, kind) for name, kind in found]


def _rowid(connection: sqlite3.Connection, table: str, chance: Random) -> int:
    rows = [rowid for (rowid,) in connection.execute(f'SELECT rowid FROM "{table}"')]
    return chance.choice(rows)


def odd_cell(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Store a value of another type or size in a cell."""
    column, _ = chance.choice(_columns(connection, table))
    rowid = _rowid(connection, table, chance)
    connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (chance.choice(CELLS), rowid))


def odd_column(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Store a value of another type or size in all cells of a column."""
    column, _ = chance.choice(_columns(connection, table))
    connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (chance.choice(CELLS),))


def no_number(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Store text or bytes in a cell of a column of numbers."""
    columns = [name for name, kind in _columns(connection, table) if kind.startswith("INT")]
    rowid = _rowid(connection, table, chance)
    value = chance.choice(["text", b"\xff\x00blob", "12 ns"])
    connection.execute(f'UPDATE "{table}" SET "{chance.choice(columns)}" = ? WHERE rowid = ?', (value, rowid))


def invalid_text(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Store text that is not UTF-8."""
    column, _ = chance.choice(_columns(connection, table))
    rowid = _rowid(connection, table, chance)
    connection.execute(
        f'UPDATE "{table}" SET "{column}" = CAST(x\'46fe302eed\' AS TEXT) WHERE rowid = ?', (rowid,)
    )


def delete_row(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Delete a row."""
    connection.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (_rowid(connection, table, chance),))


def delete_rows(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Delete all rows, or every other one."""
    connection.execute(f'DELETE FROM "{table}" WHERE rowid % ? = 0', (chance.choice([1, 2]),))


def repeat_row(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Insert a row again."""
    columns = _plain_columns(connection, table)
    query = f'INSERT INTO "{table}" ({columns}) SELECT {columns} FROM "{table}" WHERE rowid = ?'
    connection.execute(query, (_rowid(connection, table, chance),))


def many_rows(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Repeat all rows many times."""
    columns = _plain_columns(connection, table)
    for _ in range(chance.randrange(1, 8)):
        connection.execute(f'INSERT INTO "{table}" ({columns}) SELECT {columns} FROM "{table}"')


def _plain_columns(connection: sqlite3.Connection, table: str) -> str:
    """Return the columns that are no key, as a list for SQL."""
    found = connection.execute("SELECT name FROM pragma_table_info(?) WHERE NOT pk", (table,))
    return ", ".join(f'"{name}"' for (name,) in found)


def drop_table(connection: sqlite3.Connection, table: str, chance: Random) -> None:  # noqa: ARG001 - same signature
    """Drop a table."""
    connection.execute(f'DROP TABLE "{table}"')


def rename_table(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Rename a table, or change the case of its name."""
    connection.execute(f'ALTER TABLE "{table}" RENAME TO "{chance.choice([table + "_2", "x"])}"')


def drop_column(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Drop a column."""
    column, _ = chance.choice(_columns(connection, table))
    connection.executescript("DROP INDEX IF EXISTS TaskIndex")
    keep = ", ".join(f'"{name}"' for name, _ in _columns(connection, table) if name != column)
    connection.execute(f'CREATE TABLE kept AS SELECT {keep} FROM "{table}"')
    connection.execute(f'DROP TABLE "{table}"')
    connection.execute(f'ALTER TABLE kept RENAME TO "{table}"')


def rename_column(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Rename a column."""
    column, _ = chance.choice(_columns(connection, table))
    connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other"')


def view_of_table(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Replace a table by a view of it, of a part of it, or by one without rows."""
    connection.execute(f'ALTER TABLE "{table}" RENAME TO "kept"')
    limit = chance.choice(["", " LIMIT 1", " WHERE 0"])
    connection.execute(f'CREATE VIEW "{table}" AS SELECT * FROM kept{limit}')


def endless_view(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Replace a table by a view that never ends, with rows or without."""
    columns = [name for name, _ in _columns(connection, table)]
    where = chance.choice(["", " WHERE i < 0"])
    cells = ", ".join(f'i AS "{name}"' for name in columns)
    connection.execute(f'DROP TABLE "{table}"')
    connection.execute(f'CREATE VIEW "{table}" AS {ENDLESS} SELECT {cells} FROM n{where}')


def huge_view(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Replace a table by a view with cells of many megabytes."""
    columns = [name for name, _ in _columns(connection, table)]
    cells = ", ".join(f'zeroblob({chance.choice([10**6, 10**8, 10**9])}) AS "{name}"' for name in columns)
    connection.execute(f'DROP TABLE "{table}"')
    connection.execute(
        f'CREATE VIEW "{table}" AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30) '
        f"SELECT {cells} FROM n"
    )


def without_rowid(connection: sqlite3.Connection, table: str, chance: Random) -> None:  # noqa: ARG001 - same
    """Replace a table by one that has no rowid."""
    columns = [name for name, _ in _columns(connection, table)]
    declared = ", ".join(f'"{name}"' for name in columns)
    connection.execute(f"CREATE TABLE kept (number INTEGER PRIMARY KEY, {declared}) WITHOUT ROWID")
    connection.execute(f'INSERT INTO kept SELECT rowid, * FROM "{table}"')
    connection.execute(f'DROP TABLE "{table}"')
    connection.execute(f'ALTER TABLE kept RENAME TO "{table}"')


def generated_column(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Replace a column by one that is computed."""
    column, _ = chance.choice(_columns(connection, table))
    connection.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "stored"')
    connection.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}" GENERATED ALWAYS AS (stored) VIRTUAL')


def odd_schema(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Replace the declaration of a table by one that is invalid, or of something else."""
    sql = chance.choice(
        ["nonsense", "", None, f'CREATE TABLE "{table}" (a, b)', "CREATE VIRTUAL TABLE t USING none()"]
    )
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (sql, table))


def odd_root_page(connection: sqlite3.Connection, table: str, chance: Random) -> None:
    """Point a table to the pages of another one, or to none."""
    connection.execute("PRAGMA writable_schema = ON")
    page = chance.choice([0, -1, 1, 2, 3, 5, 2**31])
    connection.execute("UPDATE sqlite_master SET rootpage = ? WHERE name = ?", (page, table))


def rewrite(path: Path, chance: Random) -> None:
    """Write the same content with another encoding or page size, which must not change the result."""
    copied = path.with_name("rewritten")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copied)) as target:
        target.execute(f"PRAGMA encoding = '{chance.choice(['UTF-8', 'UTF-16le', 'UTF-16be'])}'")
        target.execute(f"PRAGMA page_size = {chance.choice([512, 1024, 65536])}")
        with suppress(sqlite3.Error, UnicodeError):
            target.executescript("\n".join(source.iterdump()))
    copied.replace(path)


def garbage_beside(path: Path, chance: Random) -> None:
    """Put a journal or log of other content beside the database."""
    suffix = chance.choice(["-journal", "-wal", "-shm"])
    content = chance.choice(
        [b"", bytes(512), chance.randbytes(4096), b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(600)]
    )
    path.with_name(path.name + suffix).write_bytes(content)


def log_mode(path: Path, chance: Random) -> None:
    """Write a row into the write-ahead log and leave it there, whole or truncated."""
    log = path.with_name(path.name + "-wal")
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE added (a)")
        connection.commit()
        kept = log.read_bytes(), path.read_bytes()
    except (sqlite3.Error, OSError):
        return
    finally:
        connection.close()
    path.write_bytes(kept[1])
    log.write_bytes(kept[0][: chance.choice([None, 0, 20, 1000])])


CELL = tuple(_of_schema(change, is_revealed=False) for change in (odd_cell, odd_cell, odd_cell, odd_column))
ROWS = tuple(
    _of_schema(one, is_revealed=False)
    for one in (delete_row, delete_rows, repeat_row, many_rows, invalid_text)
)
SCHEMA = tuple(
    _of_schema(change, is_revealed=True)
    for change in (
        no_number, drop_table, drop_table, rename_table, drop_column, drop_column, rename_column, view_of_table,
        endless_view, huge_view, without_rowid, generated_column, odd_schema, odd_root_page,
    )
)  # fmt: skip
FILES = (
    Mutator("rewrite", rewrite, is_revealed=True),
    Mutator("garbage_beside", garbage_beside, is_revealed=True),
    Mutator("log_mode", log_mode, is_revealed=True),
)
DATABASE = (*CELL, *ROWS, *SCHEMA, *FILES)
"""Mutators of a database; a changed schema reveals itself, changed cells of the right type do not."""


def is_damaged(path: Path) -> bool:
    """Return whether SQLite itself finds that a database is damaged."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
            connection.text_factory = bytes  # names in a damaged schema need not be text
            return connection.execute("PRAGMA integrity_check(1)").fetchall() != [(b"ok",)]
    except (sqlite3.Error, UnicodeDecodeError):
        return True
