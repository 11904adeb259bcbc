"""The attempts of a run: what one directory holds of it, of which one is shown.

A launcher that restarts failed workers, a batch scheduler that starts a training again, and a training that starts the
recorder several times leave several recordings of each rank. An attempt has at most one recording per rank. Attempts
are numbered from 0 in the order of their starts. They are distinguished by their times, since the processes of one
attempt run simultaneously, and by the restarts that a launcher counts.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.recording.families import main_recordings, note_beside
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from stagescope.ingest.recording.process import Process

LAST = -1
"""The number of the last attempt, complete or not."""

MAX_LISTED = 8
"""Attempts that the diagnostic describes; a run may be restarted hundreds of times."""


class Attempt(NamedTuple):
    """The recordings of one attempt, one per rank."""

    processes: list[Process]

    @property
    def start_ns(self) -> int:
        """When its first process began, on the wall clock."""
        return min(process.wall_extent_ns[0] for process in self.processes)

    @property
    def ranks(self) -> set[int]:
        """Ranks with a recording."""
        return {process.rank for process in self.processes}

    @property
    def step_count(self) -> int:
        """Number of steps that all ranks completed."""
        return min(process.step_count for process in self.processes)

    @property
    def is_complete(self) -> bool:
        """Whether every declared rank was recorded and ran at least one step, or something else without steps."""
        declared = [process.contents.header.get("world_size") for process in self.processes]
        world_size = max((size for size in declared if isinstance(size, int)), default=len(self.processes))
        has_steps = any(process.step_count for process in self.processes)
        counts = [p.step_count if has_steps else p.facts.spans for p in self.processes]
        return len(self.ranks) >= world_size and min(counts) > 0


def choose_attempt(
    processes: Sequence[Process], wanted: int | None
) -> tuple[list[Process], list[Diagnostic]]:
    """Return the recordings of attempt `wanted`, by default of the last complete one, and what was left out.

    If no attempt is complete, the default is the last one of those with the most ranks. Raises InputError if there
    is no attempt `wanted`, and if two processes recorded the same rank at the same time or in different runs.
    """
    main, beside = main_recordings(processes)
    _check_one_run(main)
    attempts = find_attempts(main)
    if wanted is not None and wanted >= len(attempts):
        raise InputError.no_attempt(wanted, len(attempts))
    number = _default(attempts) if wanted is None else range(len(attempts))[wanted]
    chosen = sorted(attempts[number].processes, key=lambda process: process.rank)
    notes = [note_beside(process, beside[process.source]) for process in chosen if process.source in beside]
    if len(attempts) > 1:
        notes.append(_listed(attempts, number, is_default=wanted is None))
    return chosen, notes


def find_attempts(processes: Iterable[Process]) -> list[Attempt]:
    """Return the attempts in the order of their starts.

    An attempt ends where a rank, or a machine with another count of restarts, follows an earlier recording of it. It
    is divided at the last moment before at which nothing was running, because then a rank may begin that has no
    recording of the attempt before.
    """
    waiting = sorted(processes, key=lambda process: process.wall_extent_ns)
    attempts: list[Attempt] = []
    while (repeat := _first_repeat(waiting)) is not None:
        pause = _last_pause(waiting, *repeat)
        if pause is None:
            return [*attempts, *_counted_from_last(waiting)]
        attempts.append(Attempt(waiting[:pause]))
        waiting = waiting[pause:]
    return [*attempts, Attempt(waiting)]


def _first_repeat(processes: Sequence[Process]) -> tuple[int, int] | None:
    """Return the positions of the first recording that cannot belong to the attempt of an earlier one, and of that."""
    last_of_rank: dict[int, int] = {}
    restarts_of: dict[Hashable, tuple[object, int]] = {}
    for position, process in enumerate(processes):
        header = process.contents.header
        machine, restarts = (header.get("boot"), header.get("host")), header.get("restarts")
        if process.rank in last_of_rank:
            return last_of_rank[process.rank], position
        # torchrun counts on each machine: only the machine with the failed worker counts a restart.
        before, last = restarts_of.get(machine, (restarts, position))
        if before != restarts:
            return last, position
        last_of_rank[process.rank] = position
        restarts_of[machine] = restarts, position
    return None


def _last_pause(processes: Sequence[Process], earlier: int, later: int) -> int | None:
    """Return the last position after `earlier` and up to `later` before which every recording had ended."""
    ended_ns = list(accumulate((process.wall_extent_ns[1] for process in processes), max))
    pauses = (
        position
        for position in range(later, earlier, -1)
        if ended_ns[position - 1] <= processes[position].wall_extent_ns[0]
    )
    return next(pauses, None)


def _counted_from_last(processes: Iterable[Process]) -> list[Attempt]:
    """Return attempts by counting: the last recordings of all ranks are the last attempt, and so on."""
    of_rank: dict[int, list[Process]] = {}
    for process in processes:
        of_rank.setdefault(process.rank, []).append(process)
    count = max(map(len, of_rank.values()))
    attempts: list[list[Process]] = [[] for _ in range(count)]
    for recordings in of_rank.values():
        for attempt, process in zip(attempts[count - len(recordings) :], recordings, strict=True):
            attempt.append(process)
    return [Attempt(attempt) for attempt in attempts]


def _check_one_run(processes: Sequence[Process]) -> None:
    """Raise InputError if a rank was recorded in two runs: they are not attempts of one."""
    first: dict[int, Process] = {}
    for process in processes:
        other = first.setdefault(process.rank, process)
        runs = {other.contents.header.get("run") or None, process.contents.header.get("run") or None}
        if len(runs) > 1:
            raise InputError.duplicate_rank(process.rank, (other.source, process.source))


def _default(attempts: Sequence[Attempt]) -> int:
    complete = [number for number, attempt in enumerate(attempts) if attempt.is_complete]
    if complete:
        return complete[-1]
    return max(range(len(attempts)), key=lambda number: (len(attempts[number].ranks), number))


def _listed(attempts: Sequence[Attempt], number: int, *, is_default: bool) -> Diagnostic:
    """Return the diagnostic that describes all attempts, as a warning if a later one is incomplete."""
    is_last = number == len(attempts) - 1
    kind = "complete " if is_default and attempts[number].is_complete else ""
    shown = f"attempt {number}, the last {kind}one," if is_default else f"attempt {number}"
    described = [f"{index}: {_description(attempt)}" for index, attempt in enumerate(attempts)]
    if len(described) > MAX_LISTED:
        described[1 : 2 - MAX_LISTED] = ["..."]
    text = f"the run has {len(attempts)} attempts, of which {shown} is shown (--attempt N): {'; '.join(described)}"
    severity = "info" if is_last or not is_default else "warning"
    return Diagnostic(severity, text, count=len(attempts), code="attempts.several")


def _description(attempt: Attempt) -> str:
    ends = Counter(_end_of(process) for process in attempt.processes)
    ended = " and ".join(f"{count} {reason}" if len(ends) > 1 else reason for reason, count in ends.items())
    steps = attempt.step_count
    return (
        f"{_moment(attempt.start_ns)}, rank{'s' if len(attempt.ranks) > 1 else ''} {compact_ranges(attempt.ranks)}, "
        f"{steps} step{'' if steps == 1 else 's'}, {ended}"
    )


def _end_of(process: Process) -> str:
    reason = (process.contents.end or {}).get("reason")
    return f"ended by {reason}" if isinstance(reason, str) else "killed or still running"


def _moment(wall_ns: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ns / 1e9, tz=timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "at an unknown time"
