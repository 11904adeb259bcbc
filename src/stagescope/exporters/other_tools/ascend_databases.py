"""Write StepTaskInfo and opConnectionId into the databases of Ascend profiles, or into copies of them.

Each database is changed in one SQLite transaction: if the writer is interrupted, even by a power failure, the database
is either unchanged or complete. A copy is created next to its final path and renamed when complete.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.exporters.new_files import make_directory, temporary_file
from stagescope.exporters.other_tools import errors
from stagescope.exporters.other_tools.connection_ids import connection_ids
from stagescope.exporters.other_tools.step_task_info import UNKNOWN, step_task_rows
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.limits import UNLIMITED, limit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from stagescope.model import Timeline

TABLE, OPERATIONS, COLUMN = "StepTaskInfo", "COMMUNICATION_OP", "opConnectionId"
NAMES = "STRING_IDS"
OUTPUT_FOLDER, FACTS = "ASCEND_PROFILER_OUTPUT", "profiler_*.json"
"""Folder in which torch_npu and MindSpore put a rank's database, and the small files next to it, which are copied too.
"""

SCRATCH_SHARE = 1.05
"""Required free space as a multiple of the databases' size, which includes the new tables."""

LOCK_SECONDS = 1.0
STEPS_BETWEEN_CHECKS = 100_000
"""Steps of SQLite's virtual machine between two looks at the clock: about a millisecond."""


@dataclass(frozen=True)
class ChartOptions:
    """What to write: one step or all, and names with numbers or as in msprof-analyze."""

    step: int | None = None
    numbered: bool = False


@dataclass(frozen=True)
class Target:
    """The database of a rank and the output path; the same path means a change in place."""

    rank: int
    source: Path
    path: Path

    @property
    def in_place(self) -> bool:
        """Whether the profile itself is changed."""
        return self.source == self.path


class WrittenRank(NamedTuple):
    """Content of one finished database: marks, the marks without a number, and the operations with an id."""

    rank: int
    path: Path
    marks: int
    unnamed: int
    paired: int


class WrittenChart(NamedTuple):
    """The ranks that were written, and diagnostics on the others."""

    ranks: tuple[WrittenRank, ...]
    diagnostics: tuple[Diagnostic, ...]


def write_chart(
    timeline: Timeline,
    targets: Iterable[Target],
    options: ChartOptions,
    on_written: Callable[[WrittenRank], object] | None = None,
) -> WrittenChart:
    """Return what was written for MindStudio Insight into the database of every target.

    Before the first one is changed, raises OutputError for a database that is not writable or in use, and for too
    little free space. A database that fails during writing stays unchanged and becomes an error in the diagnostics.
    `on_written` is called with each rank when it is finished.
    """
    every = tuple(targets)
    _check(every)
    rows = step_task_rows(timeline, step=options.step, numbered=options.numbered)
    ids, crowded = connection_ids(timeline, options.step)
    written: list[WrittenRank] = []
    diagnostics: list[Diagnostic] = []
    for target in every:
        of_rank = _Content(
            rows.filter(pl.col("rank") == target.rank),
            ids.filter(pl.col("rank") == target.rank),
            options.step,
        )
        try:
            _write(target, of_rank)
        except (sqlite3.Error, OSError) as reason:
            text = f"nothing was written for this rank: {reason}"
            diagnostics.append(
                Diagnostic("error", text, str(target.source), target.rank, code="chart.rank_not_written")
            )
            continue
        written.append(_account(target, of_rank))
        if on_written is not None:
            on_written(written[-1])
    if crowded:
        text = "messages share an operation with another one: Insight draws only one arrow per operation"
        diagnostics.append(Diagnostic("info", text, count=crowded, code="chart.shared_operation"))
    return WrittenChart(tuple(written), tuple(diagnostics))


class _Content(NamedTuple):
    """Content to write into one database."""

    rows: pl.DataFrame
    ids: pl.DataFrame
    step: int | None


def _account(target: Target, content: _Content) -> WrittenRank:
    rows = content.rows
    unnamed = int((rows["type"] == UNKNOWN).sum())
    return WrittenRank(target.rank, target.path, rows.height, unnamed, content.ids["id"].count())


def copy_targets(databases: Mapping[int, Path], root: Path, copy: Path) -> Iterator[Target]:
    """Yield a target for every rank's database, at the same place below `copy` as below `root`."""
    for rank, source in databases.items():
        inside = (
            source.relative_to(root) if source.is_relative_to(root) else source.relative_to(source.parents[2])
        )
        yield Target(rank, source, copy / inside)


def _check(targets: tuple[Target, ...]) -> None:
    """Raise for the first target that cannot be written."""
    for target in targets:
        if target.in_place:
            _check_writable(target.path)
    copied = [target for target in targets if not target.in_place]
    if not copied:
        return
    needed_bytes = int(SCRATCH_SHARE * sum(target.source.stat().st_size for target in copied))
    place = next(folder for folder in copied[0].path.parents if folder.exists())
    free_bytes = shutil.disk_usage(place).free
    if free_bytes < needed_bytes:
        raise errors.no_space(place, needed_bytes, free_bytes)


def _check_writable(path: Path) -> None:
    if path.is_symlink():
        raise errors.is_link(path)
    # The mode is checked in addition to access rights: root can write even to read-only files.
    if not path.stat().st_mode & stat.S_IWUSR or not (
        os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    ):
        raise errors.read_only(path)
    try:
        with closing(sqlite3.connect(path, timeout=LOCK_SECONDS)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
    except sqlite3.OperationalError as reason:
        raise errors.in_use(path, str(reason)) from reason
    except sqlite3.DatabaseError:
        # A damaged database is skipped and reported when it is written; it does not block the others.
        return


def _write(target: Target, content: _Content) -> None:
    if target.in_place:
        _fill(target.path, content)
        return
    make_directory(target.path.parent)
    with temporary_file(target.path) as unfinished:
        try:
            _copy(target.source, unfinished)
            _fill(unfinished, content)
            unfinished.replace(target.path)
        finally:
            for suffix in ("-journal", "-wal", "-shm"):
                unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
    if target.source.parent.name == OUTPUT_FOLDER:
        for facts in target.source.parents[1].glob(FACTS):
            if not facts.is_file():  # a pipe or a device, which would have no end
                continue
            copied = target.path.parents[1] / facts.name
            with temporary_file(copied) as unfinished:
                shutil.copyfile(facts, unfinished)
                unfinished.replace(copied)


def _copy(source: Path, path: Path) -> None:
    """Copy a database including the changes in its write-ahead log, with SQLite's backup API."""
    with closing(_open_to_read(source)) as reading, closing(sqlite3.connect(path)) as writing:
        reading.backup(writing)
        writing.execute("PRAGMA journal_mode = DELETE")


def _open_to_read(path: Path) -> sqlite3.Connection:
    address = path.absolute().as_uri()
    connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=LOCK_SECONDS)
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError:
        # In a read-only folder, SQLite cannot create the files that a database with a write-ahead log needs.
        connection.close()
        return sqlite3.connect(f"{address}?immutable=1", uri=True)
    except BaseException:  # raised again: an open database would keep the file
        connection.close()
        raise
    return connection


def _fill(path: Path, content: _Content) -> None:
    """Write the table and the ids in one transaction."""
    with closing(sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None)) as connection:
        _limit_time(connection)
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("BEGIN IMMEDIATE")
        _require_plain_tables(connection)
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}")
        connection.execute(f"CREATE TABLE {TABLE} (name TEXT, startNs INTEGER, endNs INTEGER, type INTEGER)")
        connection.executemany(
            f"INSERT INTO {TABLE} VALUES (?, ?, ?, ?)",  # noqa: S608  # a constant
            content.rows.select("name", "start_ns", "end_ns", "type").iter_rows(),
        )
        if _columns(connection, OPERATIONS):
            _fill_ids(connection, content)
        connection.execute("COMMIT")


def _limit_time(connection: sqlite3.Connection) -> None:
    """Let everything that is executed end with an error after the limit `query`."""
    seconds = limit("query")
    if seconds != UNLIMITED:
        end = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > end, STEPS_BETWEEN_CHECKS)


def _require_plain_tables(connection: sqlite3.Connection) -> None:
    """Raise sqlite3.Error unless what is read and changed are tables without triggers, as profilers write them.

    Views and triggers are code of the file: they may be endless, or change other tables.
    """
    found = connection.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger') AND "
        "(name COLLATE NOCASE IN (?1, ?2, ?3) OR tbl_name COLLATE NOCASE IN (?1, ?2, ?3))",
        (TABLE, OPERATIONS, NAMES),
    ).fetchone()
    if found is not None:
        raise sqlite3.DatabaseError(f"it has a {found[0]} {found[1]!r}, which no profiler writes")


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def _fill_ids(connection: sqlite3.Connection, content: _Content) -> None:
    """Write the ids of operations; the ids of all others become null, or of that step only if one is given."""
    if COLUMN not in _columns(connection, OPERATIONS):
        connection.execute(f"ALTER TABLE {OPERATIONS} ADD COLUMN {COLUMN} TEXT")
    connection.execute("CREATE TEMP TABLE names (name TEXT PRIMARY KEY, id TEXT)")
    connection.executemany(
        "INSERT OR REPLACE INTO names VALUES (?, ?)", content.ids.select("name", "id").iter_rows()
    )
    # By number, because neither table has an index on the text: this needs one pass over each.
    connection.execute("CREATE TEMP TABLE ids (number INTEGER PRIMARY KEY, id TEXT)")
    connection.execute(
        "INSERT INTO ids SELECT s.id, n.id FROM main.STRING_IDS s CROSS JOIN names n ON n.name = s.value"
    )
    only = "" if content.step is None else " WHERE opName IN (SELECT number FROM ids)"
    connection.execute(
        f"UPDATE main.{OPERATIONS} SET {COLUMN} = (SELECT id FROM ids WHERE number = opName){only}"  # noqa: S608
    )
