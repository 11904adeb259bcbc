"""Appends frames to one recording file and tolerates every error of the file system."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

from stagescope.record.format import HEAD, MAX_PAYLOAD_BYTES, RECORDS, SUFFIX, encode_frame
from stagescope.vocabulary.file_modes import directory_mode, file_mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_NAME_TRIES = 100


class FrameFile:
    """One open file. A frame is written completely or not at all, as far as the system allows it."""

    def __init__(self, directory: str, names: Iterable[str], limit_bytes: int = 0) -> None:
        """Create the file under the first free name of `names`, limited to `limit_bytes` (0: unlimited).

        Raises OSError if the directory or the file cannot be created.
        """
        # Importing pathlib would cost every process start-up time.
        os.makedirs(directory, directory_mode(), exist_ok=True)
        self.path, self._descriptor = _create(directory, names)
        self.is_full = False
        self._limit_bytes = limit_bytes
        self._sequence = 0
        self._size_bytes = 0
        self._records: dict[str, int] = {}

    def append(self, frame_type: int, payload: bytes) -> bool:
        """Append one frame; return whether it was written. Never raises.

        Sets `is_full` if the size limit prevented it.
        """
        if len(payload) > MAX_PAYLOAD_BYTES:  # readers reject larger frames
            return False
        if 0 < self._limit_bytes < self._size_bytes + HEAD.size + len(payload):
            self.is_full = True
            return False
        begin = self._size_bytes
        try:
            self._write_all(encode_frame(self._sequence, frame_type, payload))
        except OSError:
            self._forget_partial_frame(begin)
            return False
        self._sequence += 1
        if frame_type in RECORDS:
            name, size_bytes = RECORDS[frame_type]
            self._records[name] = self._records.get(name, 0) + len(payload) // size_bytes
        return True

    def written(self) -> dict[str, object]:
        """Return how many frames, and records of each kind, are in the file; nothing for an empty file."""
        return {"file_frames": self._sequence, "file_records": self._records} if self._sequence else {}

    def append_json(self, frame_type: int, facts: Mapping[str, object]) -> bool:
        """Append one frame with a JSON payload."""
        return self.append(frame_type, json.dumps(facts, separators=(",", ":"), default=str).encode())

    def sync(self) -> None:
        """Ask the system to write the data to disk; errors are ignored."""
        try:
            os.fdatasync(self._descriptor)
        except (OSError, AttributeError):
            return

    def is_deleted(self) -> bool:
        """Return whether the file has been deleted: its data is lost once it is closed."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:
            return False

    def close(self) -> None:
        """Close the file; errors are ignored."""
        try:
            os.close(self._descriptor)
        except OSError:
            return

    def _write_all(self, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            written = os.write(self._descriptor, view)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written")
            self._size_bytes += written
            view = view[written:]

    def _forget_partial_frame(self, begin: int) -> None:
        """Remove a partially written frame. If truncation fails too, readers skip the frame by its CRC."""
        if self._size_bytes == begin:
            return
        try:
            os.ftruncate(self._descriptor, begin)
        except OSError:
            return
        self._size_bytes = begin


def free_names(stem: str) -> Iterator[str]:
    """Yield candidate file names: the plain one first, then names with the process id.

    A forked child or a helper process may have the same rank as its parent, and a process may record more than once
    into one directory.
    """
    yield stem + SUFFIX
    own = f"{stem}-{os.getpid()}"
    yield own + SUFFIX
    for attempt in range(1, MAX_NAME_TRIES - 1):
        yield f"{own}-{attempt}{SUFFIX}"


def _create(directory: str, names: Iterable[str]) -> tuple[str, int]:
    """Return path and descriptor of a new file. Existing files are never overwritten."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
    for name in names:
        path = os.path.join(directory, name)  # not pathlib, as above
        try:
            return path, os.open(path, flags, file_mode())
        except FileExistsError:
            continue
    raise FileExistsError(f"too many recordings of this process in {directory}")
