"""Select the profiles to read: find the rank of every database and keep one database per rank.

torch_npu and MindSpore write `{host}_{pid}_{time}_ascend_pt/ASCEND_PROFILER_OUTPUT/ascend_pytorch_profiler_{rank}.db`
(`_ascend_ms` and `ascend_mindspore_profiler`), without the rank if the run has a single process; msMonitor writes
`msmonitor_{pid}_{time}_{rank}.db`. Times have 17 digits, year to millisecond. The schema is documented in
Ascend/msprof, docs/en/user_guide/profile_data_file_references_db.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.ascend.metadata import read_json_object
from stagescope.ingest.database import Database, has_tables, is_database
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import StagescopeError
from stagescope.vocabulary.limits import limit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

PATTERNS = ("ascend_pytorch_profiler*.db", "ascend_mindspore_profiler*.db", "msmonitor_*.db")
NAMES = re.compile(r"ascend_(?:pytorch|mindspore)_profiler(?:_(\d+))?\.db|msmonitor_\d+_\d{17}_(\d+)\.db")
TIMESTAMP = re.compile(r"_(\d{17})_")
TABLES = ("MSTX_EVENTS", "TASK", "STRING_IDS")
"""Tables that a database of any other name must have to be recognized as a profile with marks."""

DISTRIBUTED_ARGS = "distributed_args"


class Profile(NamedTuple):
    """One database and its rank."""

    rank: int
    path: Path


def is_profile(path: Path, head: bytes) -> bool:
    """Return whether a file is a profile: by its name, damaged or not, or a database with the tables of a profile."""
    return bool(NAMES.fullmatch(path.name)) or (is_database(head) and has_tables(path, TABLES))


def choose_profiles(paths: Sequence[Path]) -> tuple[list[Profile], list[Diagnostic]]:
    """Return one profile per rank, sorted by rank, and diagnostics on unnamed ranks and on ignored copies.

    Of several profiles of one rank the newest is used, by the time in its path, then by the start of its session. A
    file whose rank is recorded nowhere is rank 0 if it is the only one, and is otherwise ignored with an error.
    """
    by_rank: defaultdict[int, list[Path]] = defaultdict(list)
    notes: list[Diagnostic] = []
    for path in paths:
        rank = _rank_in_name(path)
        if rank is None:
            rank, note = _rank_in_content(path, is_alone=len(paths) == 1)
            notes.append(note)
        if rank is not None:
            by_rank[rank].append(path)
    chosen = []
    for rank, candidates in sorted(by_rank.items()):
        newest = max(candidates, key=_age_key) if len(candidates) > 1 else candidates[0]
        chosen.append(Profile(rank, newest))
        notes += [_older_profile(rank, path, newest) for path in candidates if path != newest]
    return chosen, notes


def _rank_in_name(path: Path) -> int | None:
    found = NAMES.fullmatch(path.name)
    digits = (found[1] or found[2]) if found else None
    return int(digits) if digits is not None and int(digits) < limit("ranks") else None


def _rank_in_content(path: Path, *, is_alone: bool) -> tuple[int | None, Diagnostic]:
    """Return the rank recorded in the database or in the files next to it, and a diagnostic on the source."""
    for place, ranks in (*_ranks_in_database(path), *_ranks_in_profiler_info(path)):
        # A negative or huge number is not a rank, and several different ranks do not identify one.
        if len(set(ranks)) == 1 and 0 <= ranks[0] < limit("ranks"):
            text = f"the file name has no rank; rank {ranks[0]} is taken from {place}"
            return ranks[0], Diagnostic("info", text, str(path), ranks[0], code="rank.from_content")
    if is_alone:
        text = "the rank is not recorded; assumed to be rank 0, because it is the only profile"
        return 0, Diagnostic("info", text, str(path), 0, code="rank.assumed")
    text = "the rank is not recorded; the profile was ignored"
    return None, Diagnostic("error", text, str(path), code="rank.unknown")


def _ranks_in_database(path: Path) -> Iterable[tuple[str, list[int]]]:
    """Yield, per table that records the rank, its name and the ranks found in it."""
    try:
        with Database(path) as database:
            devices = database.frame("RANK_DEVICE_MAP", ("rankId",), {"rank": pl.Int64})
            yield "RANK_DEVICE_MAP", devices["rank"].drop_nulls().to_list()
            values = database.frame("META_DATA", ("name", "value"), {"name": pl.String, "value": pl.String})
            declared = map(_as_rank, values.filter(pl.col("name") == DISTRIBUTED_ARGS)["value"])
            yield "META_DATA", [rank for rank in declared if rank is not None]
    except StagescopeError:  # the fault is reported when the file is read
        return


def _as_rank(value: str | None) -> int | None:
    recorded = read_json_object(value).get("rank")
    return recorded if isinstance(recorded, int) else None


def _ranks_in_profiler_info(path: Path) -> Iterable[tuple[str, list[int]]]:
    """Yield the ranks in the names of the files profiler_info_{rank}.json next to the output folder."""
    names = [
        re.fullmatch(r"profiler_info_(\d+)\.json", file.name)
        for file in path.parent.parent.glob("profiler_info_*")
    ]
    yield "profiler_info", [int(name[1]) for name in names if name]


def _age_key(path: Path) -> tuple[int, int, str]:
    """Return the sort key of profiles of one rank by age: the digits in the path, then the start of the session."""
    digits = [
        found[-1] for part in (path.parent.parent.name, path.name) if (found := TIMESTAMP.findall(part))
    ]
    return int(digits[-1]) if digits else 0, _session_start_ns(path), str(path)


def _session_start_ns(path: Path) -> int:
    try:
        with Database(path) as database:
            starts = database.frame("SESSION_TIME_INFO", ("startTimeNs",), {"start_ns": pl.Int64})["start_ns"]
    except StagescopeError:  # the fault is reported when the file is read
        return 0
    return max(starts.drop_nulls(), default=0)


def _older_profile(rank: int, path: Path, newest: Path) -> Diagnostic:
    text = f"an older profile of the same rank was ignored; the newest is {newest}"
    return Diagnostic("warning", text, str(path), rank, code="ascend.older_profile")
