"""Which of several processes that recorded one rank at the same time is the rank.

A training may fork processes, or start them, that record spans of their own, such as the workers of a data loader.
They inherit the rank of their parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.ingest.recording.process import Process


def main_recordings(processes: Sequence[Process]) -> tuple[list[Process], dict[str, list[Process]]]:
    """Return the recordings of ranks, and by the source of each the recordings beside it.

    Recordings of one rank at different times are all kept. Of those at the same time, the one with the most actions is
    the rank; the parent, if there are several. Raises InputError if two of them have actions and neither process is a
    child of the other: then they are different trainings.
    """
    kept: dict[int, list[Process]] = {}
    beside: dict[str, list[Process]] = {}
    for process in sorted(processes, key=lambda process: process.wall_extent_ns):
        others = kept.setdefault(process.rank, [])
        main = process
        for other in [other for other in others if are_simultaneous(other, process)]:
            _check_related(other, main)
            winner, loser = (main, other) if _weight(main) > _weight(other) else (other, main)
            if loser is other:
                others.remove(other)
            beside[winner.source] = [*beside.get(winner.source, []), loser, *beside.pop(loser.source, [])]
            main = winner
        if main not in others:
            others.append(main)
    return [process for of_rank in kept.values() for process in of_rank], beside


def note_beside(main: Process, others: Sequence[Process]) -> Diagnostic:
    """Return the diagnostic for the recordings beside the one of a rank."""
    spans = sum(process.contents.stored_spans for process in others)
    what = "another process" if len(others) == 1 else f"{len(others)} other processes"
    text = f"{what} of this rank recorded {spans} spans at the same time, which are not shown"
    return Diagnostic(
        "warning", text, others[0].source, main.rank, count=len(others), code="recording.beside"
    )


def are_simultaneous(one: Process, other: Process) -> bool:
    """Return whether two recordings overlap in time.

    On different clocks they do if they share half of the shorter one: wall clocks of two machines may be seconds apart.
    """
    same_clock = one.clock == other.clock
    (a, b), (c, d) = (
        (one.extent_ns, other.extent_ns) if same_clock else (one.wall_extent_ns, other.wall_extent_ns)
    )
    shared_ns = min(b, d) - max(a, c)
    return shared_ns > 0 if same_clock else 2 * shared_ns > min(b - a, d - c)


def _weight(process: Process) -> tuple[int, int]:
    return process.action_count, -len(_ancestors(process))


def _check_related(one: Process, other: Process) -> None:
    if not (one.action_count and other.action_count) or _is_child(one, other) or _is_child(other, one):
        return
    raise InputError.duplicate_rank(one.rank, (one.source, other.source))


def _is_child(child: Process, parent: Process) -> bool:
    """Return whether a process was forked or started by another one."""
    own, others = child.contents.header, parent.contents.header
    if others.get("recording") in _ancestors(child):
        return True
    same_machine = all(own.get(name) == others.get(name) for name in ("boot", "host"))
    return same_machine and others.get("pid") is not None and own.get("parent_pid") == others["pid"]


def _ancestors(process: Process) -> list[object]:
    found = process.contents.header.get("forked_from")
    return found if isinstance(found, list) else []
