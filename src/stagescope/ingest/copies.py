"""Recognize copies of files, such as a backup folder in the same tree: read twice, they would be further ranks.

Files are copies if their decompressed contents are equal. Two ranks never write the same bytes: their times differ.
Recordings state what they are in their headers, so their reader also finds copies that are incomplete
(recording/copies.py).
"""

from __future__ import annotations

from contextlib import ExitStack
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.reader import HEAD_BYTES
from stagescope.ingest.streams import open_stream
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stagescope.ingest.reader import Reader

BLOCK_BYTES = 1 << 20
LOG_SUFFIX = "-wal"
"""Beside a database: changes that SQLite has not moved into it yet. A database is complete only with them."""


class Unit(NamedTuple):
    """Files that are read as one, such as the tables of one report: their common path, and the files."""

    path: Path
    files: tuple[Path, ...]


def without_copies(
    files: Mapping[Reader, tuple[Path, ...]],
) -> tuple[dict[Reader, tuple[Path, ...]], list[Path], list[Diagnostic]]:
    """Return the files of each reader without copies, the copies, and a diagnostic for each.

    Of copies, the one that is fewest directories deep is kept: a backup is usually in a directory of its own.
    """
    kept: dict[Reader, tuple[Path, ...]] = {}
    copies: list[Path] = []
    notes: list[Diagnostic] = []
    for reader, paths in files.items():
        originals = {} if reader.knows_copies else _originals(_units(reader, paths))
        ignored = {path for unit in originals for path in unit.files}
        kept[reader] = tuple(path for path in paths if path not in ignored)
        copies += [path for path in paths if path in ignored]
        notes += [copy_note(unit.path, original.path) for unit, original in originals.items()]
    return kept, copies, notes


def copy_note(copy: Path, original: Path, rank: int | None = None, *, is_equal: bool = True) -> Diagnostic:
    """Return the diagnostic of a copy that is not read."""
    severity, kind = ("info", "a copy") if is_equal else ("warning", "an older or damaged copy")
    return Diagnostic(severity, f"{kind} of {original}: ignored", str(copy), rank, code="recording.copy")


def _units(reader: Reader, paths: Sequence[Path]) -> list[Unit]:
    together: dict[Path, list[Path]] = {}
    for path in paths:
        together.setdefault(reader.unit(path), []).append(path)
    units = [Unit(path, tuple(sorted(files))) for path, files in together.items()]
    return sorted(units, key=lambda unit: (len(unit.path.parts), natural_key(str(unit.path))))


def _originals(units: Iterable[Unit]) -> dict[Unit, Unit]:
    """Return the original of each copy. Only files that begin alike are read as a whole."""
    found: dict[Unit, Unit] = {}
    for alike in _groups(units, _beginning):
        for original, *copies in _groups(alike, _content):
            found |= dict.fromkeys(copies, original)
    return found


def _groups(units: Iterable[Unit], key: Callable[[Unit], Hashable]) -> list[list[Unit]]:
    """Return the groups of at least two units with the same key; units that cannot be opened are in none."""
    groups: dict[Hashable, list[Unit]] = {}
    for unit in units:
        try:
            groups.setdefault(key(unit), []).append(unit)
        except (InputError, OSError):  # noqa: PERF203 - each file fails on its own; its reader states why
            continue
    return [group for group in groups.values() if len(group) > 1]


def _beginning(unit: Unit) -> Hashable:
    heads = []
    for path in unit.files:
        with open_stream(path) as stream:
            heads.append((_name_within(unit, path), stream.read(HEAD_BYTES)))
    return tuple(heads) if any(head for _, head in heads) else unit  # empty files are equal, but no copies


def _content(unit: Unit) -> Hashable:
    return tuple((_name_within(unit, path), _checksum(path)) for path in unit.files)


def _name_within(unit: Unit, path: Path) -> str:
    return path.relative_to(unit.path).as_posix() if path != unit.path else ""


def _checksum(path: Path) -> tuple[bytes, bool]:
    """Return the checksum of a file's decompressed content, and whether the compressed data are damaged."""
    log = path.with_name(path.name + LOG_SUFFIX)
    found = blake2b()
    with ExitStack() as opened:
        streams = [
            opened.enter_context(open_stream(each)) for each in (path, log) if each is path or log.exists()
        ]
        for stream in streams:
            while block := stream.read(BLOCK_BYTES):
                found.update(block)
        return found.digest(), any(stream.damage is not None for stream in streams)
