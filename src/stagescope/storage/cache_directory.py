"""The cache directory of the user: where it is, who may read it, and what is removed from it first.

Entries are directories. What an entry was made from decides its name, so that stale ones are never used. Directories
with other names are no entries, and are never removed: STAGESCOPE_CACHE may name a directory with folders of other
programs. The time of modification of an entry is when it was used last.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.storage.errors import CACHE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

OFF = "off"
OBJECTS, RUNS, LEVELS = "objects", "runs", "levels"
"""Folders of the cache: copies from object stores, stored runs, and tiles of the page."""
ABOUT = "about.txt"
DIGITS = 24
"""Of the names of entries: hexadecimal digits of a checksum of what they were made from."""
NAME = re.compile(f"[0-9a-f]{{{DIGITS}}}(-[0-9a-f]{{{DIGITS}}})?")
KEPT = (OBJECTS, RUNS)
"""What MOST_BYTES is about; viewer/tiles/cache.py has a limit of its own."""
MOST_BYTES = 50_000_000_000
"""Of the entries together, unless half of the free disk is less."""
OWNER_ONLY = 0o700
IN_USE_S = 3600
"""An entry that was used within the last hour may be in use, and is not removed."""


_call: dict[str, bool] = {}
"""What the options of this process state, which its threads also see."""


def keep_nothing(*, is_wanted: bool) -> None:
    """Use no cache in this process, whatever the environment states; or go by the environment again."""
    _call[OFF] = is_wanted


def is_off() -> bool:
    """Return whether the user wants nothing to be kept."""
    return _call.get(OFF, False) or os.environ.get(CACHE_VARIABLE, "").strip().lower() == OFF


def is_named() -> bool:
    """Return whether the user has named the directory."""
    return os.environ.get(CACHE_VARIABLE, "").strip().lower() not in ("", OFF)


def cache_directory() -> Path:
    """Return the directory that STAGESCOPE_CACHE names, or that of the XDG Base Directory Specification 0.8."""
    if is_named():
        return Path(os.environ[CACHE_VARIABLE]).absolute()
    named = os.environ.get("XDG_CACHE_HOME", "")
    # The specification requires relative paths to be ignored.
    root = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return root / "stagescope"


def make_private(directory: Path) -> Path:
    """Create a directory that its owner alone may enter, unless it exists, and return it. Raises OSError."""
    directory.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
    return directory


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="stagescope-")


def objects_directory() -> Path:
    """Return the directory of copies from object stores: a temporary one if the cache is off or not writable."""
    if not is_off():
        with suppress(OSError, RuntimeError):  # a user without a home directory
            directory = make_private(cache_directory() / OBJECTS).resolve()
            if os.access(directory, os.W_OK | os.X_OK):
                return directory
    return Path(_temporary().name).resolve()


def describe(entry: Path, text: str) -> None:
    """Note what an entry was made from, for the list of all entries. Raises OSError."""
    (entry / ABOUT).write_text(text, encoding="utf-8", errors="replace")


def description(entry: Path) -> str:
    """Return what an entry was made from; empty if that is not known."""
    try:
        return (entry / ABOUT).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def touch(entry: Path) -> None:
    """State that an entry is used now."""
    with suppress(OSError):
        os.utime(entry)


def entries() -> list[Path]:
    """Return what is kept, the entry that was used last first."""
    return entries_in(KEPT)


def entries_in(kinds: Iterable[str]) -> list[Path]:
    """Return the entries of some folders of the cache, the one that was used last first."""
    found = [entry for kind in kinds for entry in _folders(cache_directory() / kind)]
    return sorted(found, key=last_used, reverse=True)


def _folders(directory: Path) -> Iterable[Path]:
    try:
        return [entry for entry in directory.iterdir() if is_entry(entry)]
    except OSError:
        return []


def is_entry(path: Path) -> bool:
    """Return whether a path in a folder of the cache is an entry of it."""
    return NAME.fullmatch(path.name) is not None and path.is_dir() and not path.is_symlink()


def last_used(entry: Path) -> float:
    """Return when an entry was used last, in seconds since the epoch; 0 if another process has removed it."""
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def size_bytes(entry: Path) -> int:
    """Return the size of all files of an entry."""
    total = 0
    for folder, _, files in os.walk(entry):
        for name in files:
            with suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


def most_bytes(kept_bytes: int) -> int:
    """Return how much may be kept: MOST_BYTES, or half of what the disk has beside other files, if that is less."""
    directory = cache_directory()
    place = next(folder for folder in (directory, *directory.parents) if folder.exists())
    return min(MOST_BYTES, (shutil.disk_usage(place).free + kept_bytes) // 2)


def free_space_for(need_bytes: int, newest: Path) -> None:
    """Remove the entries that were used least recently, until `newest` may grow by `need_bytes`.

    `newest` and entries in use stay, so that what is kept may be larger than the limit for a while.
    """
    sizes = {entry: size_bytes(entry) for entry in entries()}
    kept_bytes = sum(sizes.values())
    excess = kept_bytes + need_bytes - most_bytes(kept_bytes)
    now = time.time()
    for entry in reversed(sizes):
        if excess > 0 and entry != newest and now - last_used(entry) > IN_USE_S:
            remove(entry)
            excess -= sizes[entry]


def remove(entry: Path) -> None:
    """Remove an entry, which other processes stop seeing at once."""
    gone = entry.with_name(f".{entry.name}.removed-{os.getpid()}")
    with suppress(OSError):
        entry.rename(gone)
        entry = gone
    shutil.rmtree(entry, ignore_errors=True)
