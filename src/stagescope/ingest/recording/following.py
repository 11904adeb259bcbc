"""Follow the recordings of a training while they are written, with its latest steps in memory.

Recordings are append-only, and a new segment is a new file, so each look continues where the one before ended. Spans
stay in memory until their steps are forgotten; beyond a bound, the oldest ones are forgotten anyway. Of each rank, the
process that began last is followed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.reader import ReadOptions
from stagescope.ingest.recording.copies import without_copies
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
MOST_READ_BYTES = 2**20
"""Read at once from one file, so that all processes are followed to about the same step."""

UNCOUNTED = (
    "spans.missing",
    "spans.surplus",
    "spans.discarded",
    "records.missing",
    "records.surplus",
    "files.missing",
)
"""Diagnostics that compare what a recording states with all of its records, of which only the latest are in memory."""

ALL_STEPS = 2**40


class Follower:
    """All recordings below directories, followed while they are written.

    `read` looks for new files and reads what was added, `timeline` returns the steps in memory. All steps from
    `first_step` to `complete_step()` are complete. `restarts` counts how often the process of a rank was replaced by
    another one.
    """

    def __init__(self, directories: Iterable[str | os.PathLike[str]], most_bytes: int = MOST_BYTES) -> None:
        """Follow the recordings below `directories`, with at most so many bytes of spans and counters in memory."""
        self._directories = [Path(directory) for directory in directories]
        self._most_bytes = most_bytes
        self._files: dict[Path, FollowedFile] = {}
        self._processes: dict[int, list[FollowedFile]] = {}
        self.restarts = 0

    def read(self) -> bool:
        """Read what was added since the last call; return whether there may be more to read.

        Raises InputError if a directory or file cannot be read.
        """
        for directory in self._directories:
            if not directory.exists():
                raise InputError.no_recordings(directory)
            for path in sorted(directory.rglob(f"*{SUFFIX}")) if directory.is_dir() else [directory]:
                self._files.setdefault(path, FollowedFile(path))
        for path, file in list(self._files.items()):
            try:
                file.read(min(MOST_READ_BYTES, self._share_bytes))
            except FileNotFoundError:  # noqa: PERF203 - the oldest segment of a bounded recording was deleted
                self._forget_file(path)
        before = {rank: files[-1].process for rank, files in self._processes.items()}
        self._processes = _latest_processes(self._files.values())
        after = {rank: files[-1].process for rank, files in self._processes.items()}
        self.restarts += sum(before.get(rank, process) != process for rank, process in after.items())
        self.forget_before(0)
        return any(file.has_more for file in self._followed())

    def complete_step(self, *, is_over: bool = False) -> int:
        """Return the last step of which all spans have arrived, from all processes; -1 before the first.

        A process stores spans up to half a second after they end, and not quite in that order. Those of a step have
        arrived when the next step has ended, or without marked steps, when the one after it has spans. If the training
        `is_over`, no process stores any more, and the steps before the first one that was cut off are complete.
        """
        running = [files for files in self._processes.values() if not files[-1].has_ended]
        if is_over or not running:
            cut = (
                step for files in self._processes.values() if (step := _step_before_cut(files)) is not None
            )
            return min(cut, default=self.latest_step)
        return max(-1, min(map(_ended_step, running)) - 1)

    @property
    def has_processes(self) -> bool:
        """Whether there is a recording of a known rank."""
        return bool(self._processes)

    @property
    def position(self) -> int:
        """How many bytes were read so far, of files that still exist."""
        return sum(file.position for file in self._files.values())

    @property
    def latest_step(self) -> int:
        """The last step with a span in any process, -1 before the first."""
        return max((file.latest_step for file in self._followed()), default=-1)

    @property
    def begin_step(self) -> int:
        """The first step with a span in any process; 0 before any."""
        return min((file.begin_step for file in self._followed() if file.begin_step >= 0), default=0)

    @property
    def first_step(self) -> int:
        """The first step that is completely in memory, of all processes."""
        cut = (_cut_step(files) for files in self._processes.values())
        return max((*(file.forgotten_step for file in self._followed()), *cut), default=-1) + 1

    def _forget_file(self, path: Path) -> None:
        """Forget a deleted file. What the process wrote before its next file is no longer complete."""
        gone = self._files.pop(path)
        for file in self._files.values():
            if file.process == gone.process:
                file.forgotten_step = max(file.forgotten_step, gone.latest_step, gone.forgotten_step)

    def forget_before(self, step: int) -> None:
        """Forget the spans before a step, all of replaced processes, and the oldest ones beyond the bound."""
        followed = set(map(id, self._followed()))
        for file in self._files.values():
            kept = (step, self._share_bytes) if id(file) in followed else (ALL_STEPS, 0)
            file.forget_before(*kept)

    def timeline(self, after_step: int = -1) -> Timeline:
        """Return what is in memory of the last attempt; of steps up to `after_step`, at most a part.

        Raises InputError if that is no recording of a known rank.
        """
        parts = [file.part(after_step) for file in self._followed()]
        if not parts:
            raise InputError.no_recordings(self._directories[0])
        parts, copies = without_copies(parts)
        processes, unknown = processes_of(parts)
        timeline = timeline_of(processes, [*copies, *unknown], ReadOptions(), last=True)
        return replace(
            timeline,
            diagnostics=timeline.diagnostics.filter(~timeline.diagnostics["code"].is_in(UNCOUNTED)),
        )

    @property
    def _share_bytes(self) -> int:
        """How much of one file may be in memory."""
        return max(LEAST_BYTES_OF_FILE, self._most_bytes // max(len(self._files), 1))

    def _followed(self) -> list[FollowedFile]:
        return [file for files in self._processes.values() for file in files]


def _cut_step(files: Sequence[FollowedFile]) -> int:
    """Return the step of which a process may have discarded a part: the first one of its oldest file."""
    return files[0].begin_step if files[0].has_earlier else -1


def _ended_step(files: Sequence[FollowedFile]) -> int:
    """Return the last step that a process has ended; without marked steps, the one before the last with a span."""
    ended = max(file.ended_step for file in files)
    return ended if ended >= 0 else max(file.latest_step for file in files) - 1


def _step_before_cut(files: Sequence[FollowedFile]) -> int | None:
    """Return the step before the one that a process has begun and will not end, None without such a step.

    The last step of a process that ended in step 20 has spans, but no end, unless steps are not marked at all: then
    it was cut off if an exception ended the process.
    """
    latest = max(file.latest_step for file in files)
    is_marked = any(file.ended_step >= 0 for file in files)
    has_left = files[-1].has_ended and not files[-1].has_failed
    if latest < 0 or (has_left and not is_marked):
        return None
    ended = _ended_step(files)
    return None if files[-1].has_ended and ended >= latest else ended


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
