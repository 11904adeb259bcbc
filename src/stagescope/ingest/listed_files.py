"""Which of many files on an object store a search would look into, by their names alone: only these are fetched."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from stagescope.model.stored_run import JOURNAL, LOCK, MANIFEST, PAGES, PARTITIONED
from stagescope.record.format import KERNEL_FOLDER, SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stagescope.ingest.reader import Reader

LOG_OF_DATABASE = "-wal"
"""SQLite's write-ahead log has a part of the content of the database beside it."""


def names_to_read(names: Iterable[str], readers: Sequence[Reader]) -> list[str]:
    """Return those of the files below a directory that reading it would open.

    Of a stored run at the top, these are the files that every command reads, without spans, which are fetched when
    they are used, and without its page, which is several times as large as its spans. Of one further below it is the
    manifest, and nothing of the kernel traces beside recordings, as in a directory of this machine.
    """
    every = list(names)
    if MANIFEST in every or JOURNAL in every:
        large = (*(f"{table.name}/" for table in PARTITIONED), f"{PAGES}/")
        return [name for name in every if name != LOCK and not name.startswith(large)]
    stored = {_folder(name) for name in every if _is_mark(name)}
    recorded = {_folder(name) for name in every if name.endswith(SUFFIX)}
    patterns = tuple(dict.fromkeys(pattern for reader in readers for pattern in reader.patterns))
    endings = tuple(dict.fromkeys(suffix for reader in readers for suffix in reader.suffixes))
    return [
        name
        for name in every
        if _is_mark(name)
        or (
            _is_of_interest(name.rpartition("/")[2].lower(), patterns, endings)
            and not any(above in stored for above, _ in _folders_above(name))
            and not any(
                above in recorded and folder.startswith(KERNEL_FOLDER)
                for above, folder in _folders_above(name)
            )
        )
    ]


def _is_mark(name: str) -> bool:
    """Return whether a file marks a stored run."""
    return name.rpartition("/")[2] in (MANIFEST, JOURNAL)


def _is_of_interest(name: str, patterns: tuple[str, ...], endings: tuple[str, ...]) -> bool:
    own = name.removesuffix(LOG_OF_DATABASE)
    return name.endswith(endings) or any(fnmatchcase(own, pattern) for pattern in patterns)


def _folder(name: str) -> str:
    folder, slash, _ = name.rpartition("/")
    return folder + slash


def _folders_above(name: str) -> Iterator[tuple[str, str]]:
    """Yield each folder that a file is in, ending with a slash, and the next part of the name below it."""
    parts = name.split("/")
    for depth, part in enumerate(parts):
        yield "".join(f"{each}/" for each in parts[:depth]), part
