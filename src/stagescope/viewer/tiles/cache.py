"""The cache of levels on disk. Names depend on the content of the input, so stale levels are never used.

A folder appears whole, by a rename, or not at all. Of the same input read the same way only the newest folder is
kept, and of all folders those used last.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stagescope.storage.cache_directory import (
    DIGITS,
    LEVELS,
    cache_directory,
    is_entry,
    last_used,
    size_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

EDGE_BYTES = 4096
"""How much of the start and end of a file is hashed, in addition to its size and mtime."""

MOST_BYTES = 20_000_000_000
"""Above this total size, the least recently used folders are removed when a new one is made."""

DAY_S = 86_400
UNFINISHED = ".unfinished-"


def cache_folder() -> Path:
    """Return the folder of all levels, in the user's cache directory."""
    return cache_directory() / LEVELS


def fingerprint_files(files: Iterable[Path]) -> str:
    """Return a text that changes when a file is written, added or removed; cheap enough for polling."""
    digest = hashlib.sha256()
    for path in files:
        state = path.stat()
        digest.update(
            f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}\0".encode(errors="surrogatepass")
        )
    return digest.hexdigest()[:DIGITS]


def content_key(files: Iterable[Path], parameters: str, further: str = "") -> str:
    """Return the name for the levels of some files; `parameters` is everything else that they depend on.

    The first half identifies the files, the second their contents: path, size, mtime, first and last bytes. `further`
    is the state of other files, which belongs to the contents.
    """
    place, content = hashlib.sha256(parameters.encode()), hashlib.sha256(parameters.encode())
    for path in files:
        place.update(f"{path.resolve()}\0".encode(errors="surrogatepass"))
        state = path.stat()
        content.update(
            f"{path.resolve()}\0{state.st_size}\0{state.st_mtime_ns}\0".encode(errors="surrogatepass")
        )
        content.update(_edges(path, state.st_size))
    content.update(further.encode(errors="surrogatepass"))
    return f"{place.hexdigest()[:DIGITS]}-{content.hexdigest()[:DIGITS]}"


def _edges(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        head = file.read(EDGE_BYTES)
        file.seek(max(size - EDGE_BYTES, 0))
        return head + file.read(EDGE_BYTES)


def keep(key: str, make: Callable[[Path], None], root: Path | None = None) -> Path:
    """Return the folder named `key`, filled by `make` unless it exists.

    Raises OSError when the system refuses; whatever stops `make` leaves no folder.
    """
    root = cache_folder() if root is None else root
    folder = root / key
    if folder.is_dir():
        os.utime(folder)
        return folder
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED}{os.getpid()}-", dir=root))
    try:
        make(unfinished)
        try:
            unfinished.rename(folder)
        except OSError:
            # Another process may have made the same folder in the meantime.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    _evict(root, folder)
    return folder


def keep_whole(key: str, make: Callable[[Path], None], open_: Callable[[Path], T]) -> T:
    """Return what `open_` makes of the folder named `key`, filled by `make` unless it is complete. Raises OSError."""
    folder = keep(key, make)
    try:
        return open_(folder)
    except (OSError, ValueError, KeyError):
        # Files were deleted from the cache, or the disk was full: rebuild once.
        discard(folder)
        return open_(keep(key, make))


def discard(folder: Path) -> None:
    """Remove a damaged folder of levels."""
    shutil.rmtree(folder, ignore_errors=True)


def _evict(root: Path, newest: Path) -> None:
    """Remove older folders of the same input, unfinished folders, and those beyond MOST_BYTES."""
    place = newest.name.partition("-")[0]
    kept_bytes = size_bytes(newest)
    others = [path for path in root.iterdir() if path != newest and path.is_dir()]
    for folder in sorted(others, key=last_used, reverse=True):
        if folder.name.startswith(UNFINISHED):
            if _is_abandoned(folder):
                discard(folder)
        elif not is_entry(folder):
            continue  # of another program
        elif folder.name.startswith(f"{place}-") or kept_bytes + size_bytes(folder) > MOST_BYTES:
            discard(folder)
        else:
            kept_bytes += size_bytes(folder)


def _is_abandoned(folder: Path) -> bool:
    """Return whether the process that made an unfinished folder has ended; on Windows, whether it is a day old."""
    if sys.platform == "win32":  # os.kill would end the process, or send Ctrl-C to a group of them
        return time.time() - last_used(folder) > DAY_S
    return not _is_running(folder.name.removeprefix(UNFINISHED).partition("-")[0])


def _is_running(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
