"""Which profile is whose: the rank of every database, and one database per rank.

torch_npu and MindSpore write `{host}_{pid}_{time}_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{rank}.db`
(`_ascend_ms` and `ascend_mindspore_profiler`), without the rank where a action has one process; msMonitor writes
`msmonitor_{pid}_{time}_{rank}.db`. Times are 17 digits, year to millisecond. The schema of them all: Ascend/msprof,
docs/en/user_guide/profile_data_file_references_db.md.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.database import Database, has_tables, is_database
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import StagescopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PATTERNS = ("ascend_pytorch_profiler*.db", "ascend_mindspore_profiler*.db", "msmonitor_*.db")
NAMES = re.compile(r"ascend_(?:pytorch|mindspore)_profiler(?:_(\d+))?\.db|msmonitor_\d+_\d{17}_(\d+)\.db")
STAMP = re.compile(r"_(\d{17})_")
TABLES = ("MSTX_EVENTS", "TASK", "STRING_IDS")
"""What a database of another name must hold to be taken for a profile with marks."""

RANK_QUERIES = (
    ("RANK_DEVICE_MAP", "SELECT t.rowid, t.rankId FROM RANK_DEVICE_MAP t"),
    ("META_DATA", "SELECT t.rowid, t.value FROM META_DATA t WHERE t.name = 'distributed_args'"),
)


class Profile(NamedTuple):
    """One database and the rank that it belongs to."""

    rank: int
    path: Path


def is_profile(path: Path, head: bytes) -> bool:
    """Return whether a file is a profile: named as one, damaged or not, or a database with a profile's tables."""
    return bool(NAMES.fullmatch(path.name)) or (is_database(head) and has_tables(path, TABLES))


def choose_profiles(paths: Sequence[Path]) -> tuple[list[Profile], list[Diagnostic]]:
    """Return one profile per rank, by rank, and what had to be said: ranks found elsewhere than in names, copies.

    Of several profiles of a rank the newest is taken, by the time in its path, else by the start of its session.
    A file without any sign of its rank is rank 0 where it is alone, and left out with an error otherwise.
    """
    by_rank: defaultdict[int, list[Path]] = defaultdict(list)
    notes: list[Diagnostic] = []
    for path in paths:
        rank = _rank_in_name(path)
        if rank is None:
            rank, note = _rank_elsewhere(path, is_alone=len(paths) == 1)
            notes.append(note)
        if rank is not None:
            by_rank[rank].append(path)
    chosen = []
    for rank, candidates in sorted(by_rank.items()):
        newest = max(candidates, key=_time_of) if len(candidates) > 1 else candidates[0]
        chosen.append(Profile(rank, newest))
        notes += [_left_out(rank, path, newest) for path in candidates if path != newest]
    return chosen, notes


def _rank_in_name(path: Path) -> int | None:
    found = NAMES.fullmatch(path.name)
    digits = (found[1] or found[2]) if found else None
    return None if digits is None else int(digits)


def _rank_elsewhere(path: Path, *, is_alone: bool) -> tuple[int | None, Diagnostic]:
    """Return the rank that the database or the files beside it state, and where that was found."""
    for place, ranks in (*_stated(path), *_beside(path)):
        if len(set(ranks)) == 1 and ranks[0] >= 0:
            text = f"its name says no rank; rank {ranks[0]} stands in {place}"
            return ranks[0], Diagnostic("info", text, str(path), ranks[0])
    if is_alone:
        return 0, Diagnostic("info", "nothing says which rank it is; it is taken as rank 0", str(path), 0)
    return None, Diagnostic("error", "nothing says which rank it is; it was left out", str(path))


def _stated(path: Path) -> Iterable[tuple[str, list[int]]]:
    """Yield what the tables of a database say about its rank."""
    try:
        with Database(path) as database:
            for table, query in RANK_QUERIES:
                values = [value for (value,) in database.rows(table, query)] if database.has(table) else []
                yield table, [rank for rank in map(_as_rank, values) if rank is not None]
    except StagescopeError:  # what is wrong with the file is told when it is read
        return


def _as_rank(value: object) -> int | None:
    if isinstance(value, int):
        return value
    try:
        stated = json.loads(str(value)).get("rank")
    except (ValueError, AttributeError):
        return None
    return stated if isinstance(stated, int) else None


def _beside(path: Path) -> Iterable[tuple[str, list[int]]]:
    """Yield the ranks of the files profiler_info_{rank}.json that stand above the output folder."""
    names = [
        re.fullmatch(r"profiler_info_(\d+)\.json", file.name)
        for file in path.parent.parent.glob("profiler_info_*")
    ]
    yield "profiler_info", [int(name[1]) for name in names if name]


def _time_of(path: Path) -> tuple[int, int, str]:
    """Return what orders profiles of one rank by age: the digits in the path, else the start of the session."""
    digits = [found[-1] for part in (path.parent.parent.name, path.name) if (found := STAMP.findall(part))]
    return int(digits[-1]) if digits else 0, _session_start_ns(path), str(path)


def _session_start_ns(path: Path) -> int:
    try:
        with Database(path) as database:
            query = "SELECT t.rowid, t.startTimeNs FROM SESSION_TIME_INFO t"
            starts = database.rows("SESSION_TIME_INFO", query) if database.has("SESSION_TIME_INFO") else []
    except StagescopeError:  # what is wrong with the file is told when it is read
        return 0
    return max((start for (start,) in starts if isinstance(start, int)), default=0)


def _left_out(rank: int, path: Path, newest: Path) -> Diagnostic:
    text = f"an older profile of the same rank was left out; read was {newest}"
    return Diagnostic("warning", text, str(path), rank)
