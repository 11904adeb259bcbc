"""Follow the recordings of a training while they are written, with its latest steps in memory.

Recordings are append-only, and a new segment is a new file, so each look continues where the one before ended. Spans
stay in memory until their steps are forgotten; beyond a bound, the oldest ones are forgotten anyway. Of each rank, the
process that began last is followed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.recording.followed_file import FollowedFile
from stagescope.ingest.recording.reader import processes_of, timeline_of
from stagescope.record.format import SUFFIX
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from stagescope.model import Timeline

MOST_BYTES = 64 * 2**20
"""Of all spans and counters in memory: about a million."""

LEAST_BYTES_OF_FILE = 64 * 2**10
ALL_STEPS = 2**40


class Follower:
    """All recordings below directories, followed while they are written.

    `read` looks for new files and reads what was added, `timeline` returns the steps in memory. All steps from
    `first_step` to `settled_step` are complete.
    """

    def __init__(self, directories: Iterable[str | os.PathLike[str]], most_bytes: int = MOST_BYTES) -> None:
        """Follow the recordings below `directories`, with at most so many bytes of spans and counters in memory."""
        self._directories = [Path(directory) for directory in directories]
        self._most_bytes = most_bytes
        self._files: dict[Path, FollowedFile] = {}
        self._processes: dict[int, list[FollowedFile]] = {}

    def read(self) -> bool:
        """Read what was added since the last call; return whether there was anything.

        Raises InputError if a directory or file cannot be read.
        """
        for directory in self._directories:
            if not directory.exists():
                raise InputError.no_recordings(directory)
            for path in sorted(directory.rglob(f"*{SUFFIX}")) if directory.is_dir() else [directory]:
                self._files.setdefault(path, FollowedFile(path))
        for path in [path for path in self._files if not path.exists()]:
            del self._files[path]  # the oldest segment of a bounded recording
        changed = [file.read() for file in self._files.values()]
        self._processes = _latest_processes(self._files.values())
        self.forget_before(0)
        return any(changed)

    @property
    def settled_step(self) -> int:
        """The last step of which all spans have arrived, from all processes that are running; -1 before the first.

        A process stores spans when they end, up to half a second later, and not quite in that order. Those of a step
        have arrived when the next step has ended, or without marked steps, when the one after it has spans.
        """
        running = [files for files in self._processes.values() if not files[-1].has_ended]
        if not running:
            return self.latest_step
        return max(-1, min(map(_settled_step, running)))

    @property
    def latest_step(self) -> int:
        """The last step with a span in any process, -1 before the first."""
        return max((file.latest_step for file in self._followed()), default=-1)

    @property
    def first_step(self) -> int:
        """The first step that is completely in memory, of all processes."""
        return max((file.forgotten_step for file in self._followed()), default=-1) + 1

    def forget_before(self, step: int) -> None:
        """Forget the spans before a step, all of replaced processes, and the oldest ones beyond the bound."""
        followed = self._followed()
        share = max(LEAST_BYTES_OF_FILE, self._most_bytes // max(len(followed), 1))
        for file in self._files.values():
            file.forget_before(*((step, share) if file in followed else (ALL_STEPS, 0)))

    def timeline(self) -> Timeline:
        """Return what is in memory of the last attempt. Raises InputError if that is no recording of a known rank."""
        parts = [file.part() for file in self._followed()]
        if not parts:
            raise InputError.no_recordings(self._directories[0])
        processes, unknown = processes_of(parts)
        return timeline_of(processes, unknown, ReadOptions(), last=True)

    def _followed(self) -> list[FollowedFile]:
        return [file for files in self._processes.values() for file in files]


def _settled_step(files: Sequence[FollowedFile]) -> int:
    ended = max(file.ended_step for file in files)
    return ended - 1 if ended >= 0 else max(file.latest_step for file in files) - 2


def _latest_processes(files: Iterable[FollowedFile]) -> dict[int, list[FollowedFile]]:
    """Return the files of the process of each rank that began last, in the order in which they were written."""
    found: dict[int, dict[object, list[FollowedFile]]] = {}
    for file in files:
        if file.rank is not None:
            found.setdefault(file.rank, {}).setdefault(file.process, []).append(file)
    return {
        rank: sorted(
            max(processes.values(), key=lambda own: max(file.began_ns for file in own)),
            key=lambda file: natural_key(file.path.name),
        )
        for rank, processes in sorted(found.items())
    }
