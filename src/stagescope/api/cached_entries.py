"""What is in the user's cache, and how it is removed."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from stagescope.storage.cache_directory import (
    LEVELS,
    OBJECTS,
    RUNS,
    cache_directory,
    description,
    entries_in,
    last_used,
    remove,
    size_bytes,
)

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {RUNS: "stored run", OBJECTS: "copies", LEVELS: "tiles"}
"""What the folders of the cache have."""


class CacheEntry(NamedTuple):
    """An entry of the cache: its kind, its size, when it was used last, what it was made from, and where it is."""

    kind: str
    size_bytes: int
    used: datetime
    source: str
    path: Path


def cache_entries() -> list[CacheEntry]:
    """Return what is in the cache of this user, the entry that was used last first.

    The kinds are "stored run", "copies" (from object stores) and "tiles" (of the page). `source` is what was read,
    empty where that is not known.
    """
    return [
        CacheEntry(
            KINDS[entry.parent.name],
            size_bytes(entry),
            datetime.fromtimestamp(last_used(entry), timezone.utc),
            description(entry),
            entry,
        )
        for entry in entries_in(KINDS)
    ]


def clear_cache() -> list[CacheEntry]:
    """Remove everything from the cache of this user, and return what was removed.

    A process that is reading from an entry may fail; everything is made again when it is needed.
    """
    found = cache_entries()
    for entry in found:
        remove(entry.path)
    return found


def cache_place() -> Path:
    """Return the directory of the cache."""
    return cache_directory()
