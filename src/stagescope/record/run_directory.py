"""The output directory of a run, which several `stagescope run` may share: one per rank with srun, or one per node.

The first one leaves a marker file with the identifier of the run. Others join if a launcher states the same run for
both; without a launcher's identifier, if they start within two minutes of the first and it is still running, or if
they have a rank that the directory does not have yet. The marker is locked (flock) while a command runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stagescope.record.control import CONTROL_FILE
from stagescope.record.format import SUFFIX
from stagescope.vocabulary.errors import OutputError
from stagescope.vocabulary.file_modes import directory_mode, file_mode

if TYPE_CHECKING:
    from pathlib import Path

MARKER = ".stagescope-run"
PREFIX = ".stagescope-"
WINDOW_S = 120.0
"""The commands of one launch start within this time; the first action of a slow one may come much later."""

TRIES = 50
BETWEEN_TRIES_S = 0.1

PER_MACHINE = "agent"
"""torchrun's agents have different identifiers on the machines of one run."""


@dataclass(frozen=True)
class Launch:
    """One `stagescope run`: the runs that its launchers state, its rank if they state one, and what the user wants."""

    runs: list[str]
    rank: int | None = None
    force: bool = False
    join: bool = False
    number: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True)
class Membership:
    """A place in a directory: the identifier of its run, and whether other commands were there before."""

    run: str
    has_joined: bool
    _lock: int

    def leave(self, directory: Path) -> None:
        """Unlock the marker. Without recordings and other commands, remove it, and the directory if it is empty."""
        try:
            if not recordings_in(directory) and not _is_held(self._lock):
                (directory / MARKER).unlink(missing_ok=True)
                directory.rmdir()
        except OSError:
            return
        finally:
            os.close(self._lock)


def enter(directory: Path, launch: Launch) -> Membership:
    """Prepare `directory` for the recordings of a command, and return its place there.

    Raises OutputError if the directory has the recordings of another run, unless the launch has `force` (they are
    deleted, nothing else) or `join` (they are kept), and if nothing can be written there.
    """
    try:
        directory.mkdir(directory_mode(), parents=True, exist_ok=True)
        for _ in range(TRIES):
            place = _place_in(directory, launch)
            if place is not None:
                return place
            time.sleep(BETWEEN_TRIES_S)
    except OSError as reason:
        raise OutputError.cannot_write(directory, reason) from None
    raise OutputError.other_run(directory)


def _place_in(directory: Path, launch: Launch) -> Membership | None:
    """Return the place in a directory, None if another command is entering it at this moment."""
    if not _is_unused(directory):
        joined = _join(directory, launch)
        if joined is not None:
            return joined
        if not (launch.force or launch.join):
            raise OutputError.other_run(directory)
        if launch.force and not _clear(directory):
            return None
    return _found(directory, launch)


def recordings_in(directory: Path) -> set[Path]:
    """Return the recordings in a directory and in its subdirectories, one per machine."""
    return {*directory.glob(f"*{SUFFIX}"), *directory.glob(f"*/*{SUFFIX}")}


def _is_unused(directory: Path) -> bool:
    """Return whether there is nothing in a directory; temporary files of another command that starts do not count."""
    return not any(entry.name == MARKER or not entry.name.startswith(PREFIX) for entry in directory.iterdir())


def _found(directory: Path, launch: Launch) -> Membership | None:
    """Create the marker and return the membership, None if another command was faster.

    The marker gets its name when it is complete and locked, so others never see an empty or unlocked one.
    """
    own = directory.resolve().name if launch.join else uuid.uuid4().hex
    run = launch.runs[0] if launch.runs else own
    path = directory / f"{PREFIX}{launch.number}"
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, file_mode())
    try:
        _write(lock, {"run": run, "created": time.time(), **_facts(launch)})
        _lock_shared(lock)
        try:
            os.link(path, directory / MARKER)
        except FileExistsError:
            os.close(lock)
            return None
        except OSError:  # a file system without hard links
            os.rename(path, directory / MARKER)
    finally:
        path.unlink(missing_ok=True)
    return Membership(run, False, lock)


def _join(directory: Path, launch: Launch) -> Membership | None:
    """Return the membership in the run that is in a directory, None if the launch does not belong to it."""
    try:
        lock = os.open(directory / MARKER, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    members = _members(lock)
    is_held = _is_held(lock)
    if not members or not _belongs(launch, members, is_held=is_held):
        os.close(lock)
        return None
    _lock_shared(lock)
    _write(lock, _facts(launch))
    return Membership(str(members[0].get("run", "")), True, lock)


def _belongs(launch: Launch, members: list[dict[str, Any]], *, is_held: bool) -> bool:
    known = {run for member in members for run in member.get("runs", ())}
    ranks = {member.get("rank") for member in members}
    is_new_rank = launch.rank is not None and launch.rank not in ranks
    is_recent = abs(time.time() - float(members[0].get("created", 0))) <= WINDOW_S
    if launch.join:
        return True
    if known.intersection(launch.runs):
        return not launch.force or is_held or (is_recent and is_new_rank)
    return (
        is_recent and (is_held or (is_new_rank and not launch.force)) and not _contradict(known, launch.runs)
    )


def _contradict(known: set[str], own: list[str]) -> bool:
    """Return whether a launcher states another run for the directory than for the command."""
    launchers = {run.partition("-")[0] for run in known} - {PER_MACHINE}
    return any(run.partition("-")[0] in launchers for run in own)


def _clear(directory: Path) -> bool:
    """Delete the recordings and the marker; return False if another command is doing that or has done it."""
    try:
        marker = os.open(directory / MARKER, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        marker = None
    try:
        if marker is not None and not _is_ours_to_clear(marker, directory / MARKER):
            return False
        for path in (*recordings_in(directory), directory / CONTROL_FILE, directory / MARKER):
            path.unlink(missing_ok=True)
    finally:
        if marker is not None:
            os.close(marker)
    return True


def _is_ours_to_clear(marker: int, path: Path) -> bool:
    """Lock the marker until it is closed. A file system without locks does not prevent clearing."""
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    try:
        return os.path.samestat(os.fstat(marker), path.stat())
    except FileNotFoundError:
        return False


def _facts(launch: Launch) -> dict[str, object]:
    return {"launch": launch.number, "runs": launch.runs, "rank": launch.rank}


def _write(lock: int, facts: dict[str, object]) -> None:
    os.write(lock, json.dumps(facts).encode() + b"\n")


def _members(lock: int) -> list[dict[str, Any]]:
    """Return what each command wrote into the marker, the first one first; damaged lines are left out."""
    found = []
    for line in os.pread(lock, os.fstat(lock).st_size, 0).splitlines():
        try:
            facts = json.loads(line)
        except ValueError:
            continue
        if isinstance(facts, dict):
            found.append(facts)
    return found


def _lock_shared(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
    except OSError:  # a file system without locks
        return


def _is_held(lock: int) -> bool:
    """Return whether another command has locked the marker; True if the file system has no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False
