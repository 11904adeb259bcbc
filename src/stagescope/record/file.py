"""Append frames to one recording file, and survive every refusal of the file system."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from stagescope.vocabulary.recording import SUFFIX, encode_frame

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_NAME_TRIES = 100


class FrameFile:
    """One open recording. A frame is written whole or not at all as far as the system allows it."""

    def __init__(self, directory: str, rank: int) -> None:
        """Create the file of `rank`; raises OSError when the directory or the file cannot be made."""
        os.makedirs(directory, exist_ok=True)  # noqa: PTH103  # pathlib costs import time in every process
        self.path, self._descriptor = _create(directory, f"rank{rank:05d}-{os.getpid()}")
        self._sequence = 0
        self._size_bytes = 0

    def append(self, frame_type: int, payload: bytes) -> bool:
        """Write one frame; return whether it is in the file. Never raises."""
        frame = encode_frame(self._sequence, frame_type, payload)
        try:
            self._write_all(frame)
        except OSError:
            self._forget_partial_frame()
            return False
        self._sequence += 1
        self._size_bytes += len(frame)
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

    def close(self) -> None:
        """Close the file; refusals are ignored."""
        try:
            os.close(self._descriptor)
        except OSError:
            return

    def _write_all(self, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def _forget_partial_frame(self) -> None:
        """Cut a half-written frame off; a reader skips it where even that is refused."""
        try:
            os.ftruncate(self._descriptor, self._size_bytes)
        except OSError:
            return


def _create(directory: str, stem: str) -> tuple[str, int]:
    """Return path and descriptor of a new file: a process may record more than once into a directory."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
    for attempt in range(MAX_NAME_TRIES):
        name = stem + (f"-{attempt}" if attempt else "") + SUFFIX
        path = os.path.join(directory, name)  # noqa: PTH118  # as above
        try:
            return path, os.open(path, flags, 0o600)
        except FileExistsError:
            continue
    raise FileExistsError(f"{MAX_NAME_TRIES} recordings of this process in {directory}")
