"""What a process that stores a run has completed, so that the next one goes on after it was killed."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from hashlib import blake2b
from typing import TYPE_CHECKING

from stagescope.exporters.stored_run.parquet import checksum_of
from stagescope.model.stored_run import CHECKSUM_BYTES, JOURNAL, Part

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stagescope.model.stored_run import Manifest


class Journal:
    """The completed parts of an unfinished run: a line for what is being stored, and one for each part."""

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        """Read the journal of a directory; it counts only for the sources, facts and code of `manifest`."""
        self._directory = directory
        self._path = directory / JOURNAL
        self._key = _key_of(manifest)
        self._done = {part.path: part for part in self._read()}

    def completed(self, path: str, rows: int) -> Part | None:
        """Return the part of a path if it was completed with these rows, and its file is the one that was written."""
        part = self._done.get(path)
        if part is None or part.rows != rows:
            return None
        return part if is_intact(self._directory, part) else None

    def begin(self, parts: Iterable[Part] = ()) -> None:
        """Write the journal again, with what remains valid. Raises OSError."""
        kept = {**self._done, **{part.path: part for part in parts}}
        lines = [{"key": self._key}, *(asdict(part) for part in kept.values())]
        with open(self._path, "w", encoding="utf-8", opener=_without_links) as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        self._done = kept

    def add(self, part: Part) -> None:
        """Note a part whose file is in its place. Raises OSError."""
        with open(self._path, "a", encoding="utf-8", opener=_without_links) as file:
            file.write(f"{json.dumps(asdict(part))}\n")
            file.flush()
            os.fsync(file.fileno())

    def remove_empty(self) -> None:
        """Remove the journal if no part is complete."""
        if not self._read():
            self.remove()

    def remove(self) -> None:
        """Remove the journal: the manifest lists everything. Raises OSError."""
        self._path.unlink(missing_ok=True)

    def _read(self) -> list[Part]:
        """Return the parts that a previous process noted; a last line that was cut off does not count."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
            if json.loads(lines[0]) != {"key": self._key}:
                return []
        except (OSError, ValueError, IndexError, RecursionError):
            return []
        parts = [_part_of(line) for line in lines[1:]]
        return [part for part in parts if part is not None]


def _part_of(line: str) -> Part | None:
    """Return the part that a line describes; None for a line that was cut off."""
    try:
        part = Part(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    return part if isinstance(part.path, str) else None


def _without_links(path: str, flags: int) -> int:
    """Open a file, but none that a link in a directory of others leads to."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def is_intact(directory: Path, part: Part) -> bool:
    """Return whether the file of a part has the size and checksum that it was written with."""
    file = directory / part.path
    try:
        return file.stat().st_size == part.size_bytes and checksum_of(file) == part.checksum
    except OSError:
        return False


def _key_of(manifest: Manifest) -> str:
    sources = asdict(manifest)["sources"]
    what = json.dumps([manifest.version, manifest.code, sources, manifest.facts, manifest.aligned])
    return blake2b(what.encode(), digest_size=CHECKSUM_BYTES).hexdigest()
