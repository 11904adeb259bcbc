"""Append frames to one recording file, and survive every refusal of the file system."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING

from stagescope.record.format import HEAD, MAX_PAYLOAD_BYTES, SUFFIX, encode_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_NAME_TRIES = 100


class FrameFile:
    """One open file. A frame is written whole or not at all as far as the system allows it."""

    def __init__(self, directory: str, names: Iterable[str], limit_bytes: int = 0) -> None:
        """Create the file under the first of `names` that is free, for at most `limit_bytes` unless that is 0.

        Raises OSError when the directory or the file cannot be made.
        """
        os.makedirs(directory, exist_ok=True)  # pathlib costs import time in every process
        self.path, self._descriptor = _create(directory, names)
        self.is_full = False
        self._limit_bytes = limit_bytes
        self._sequence = 0
        self._size_bytes = 0

    def append(self, frame_type: int, payload: bytes) -> bool:
        """Write one frame; return whether it is in the file. Never raises. `is_full` tells why, if it was that."""
        if len(payload) > MAX_PAYLOAD_BYTES:  # no reader would take it for a frame
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
        return True

    def append_json(self, frame_type: int, facts: Mapping[str, object]) -> bool:
        """Write one frame that carries JSON."""
        return self.append(frame_type, json.dumps(facts, separators=(",", ":"), default=str).encode())

    def sync(self) -> None:
        """Ask the system to put the data on disk; refusals are ignored."""
        try:
            os.fdatasync(self._descriptor)
        except (OSError, AttributeError):
            return

    def is_deleted(self) -> bool:
        """Return whether the file has been removed from its directory: what it holds is lost at the end."""
        try:
            return os.fstat(self._descriptor).st_nlink == 0
        except OSError:
            return False

    def close(self) -> None:
        """Close the file; refusals are ignored."""
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
        """Cut a half-written frame off; where even that is refused it stays, and a reader skips it."""
        if self._size_bytes == begin:
            return
        try:
            os.ftruncate(self._descriptor, begin)
        except OSError:
            return
        self._size_bytes = begin


def free_names(stem: str) -> Iterator[str]:
    """Yield names for a file: the plain one, and others for whoever finds that taken.

    A forked child or a helper of the training may have the rank of its parent, and a process may record more
    than once into a directory.
    """
    yield stem + SUFFIX
    own = f"{stem}-{os.getpid()}"
    yield own + SUFFIX
    for attempt in range(1, MAX_NAME_TRIES - 1):
        yield f"{own}-{attempt}{SUFFIX}"


def _create(directory: str, names: Iterable[str]) -> tuple[str, int]:
    """Return path and descriptor of a new file; no file is ever overwritten."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
    for name in names:
        path = os.path.join(directory, name)  # as above
        try:
            return path, os.open(path, flags, 0o600)
        except FileExistsError:
            continue
    raise FileExistsError(f"too many recordings of this process in {directory}")
