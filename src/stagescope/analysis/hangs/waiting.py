"""Whom a process waits for: the other end of a transfer, or the ranks that have not entered a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.hangs.conditions import waits_of
from stagescope.model.collectives import ASYNCHRONOUS, SEPARATOR
from stagescope.vocabulary.limits import limit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from stagescope.model.process_states import Call, ProcessState

CUT_OFF = "..."
"""In the list of ranks of a large group."""


class Waiting(NamedTuple):
    """One rank that another one waits for, and the transfer or collective."""

    rank: int
    call: Call


class Mismatch(NamedTuple):
    """Ranks of one group that call different collectives as the same number, by operation."""

    group: str
    number: int
    operations: dict[str, tuple[int, ...]]


def group_of(call: Call) -> tuple[str, str]:
    """Return operation and group of a collective; the group is empty for a transfer."""
    operation, _, group = (call.name or "").partition(SEPARATOR)
    return operation.removesuffix(ASYNCHRONOUS), group


def ranks_in(group: str) -> tuple[int, ...] | None:
    """Return the ranks that the name of a group lists, None if it lists only some of them.

    >>> ranks_in("default_pg 0-3 (0)"), ranks_in("mesh_dp 1-9:4 (7)"), ranks_in("0,3,4 (2)"), ranks_in("x")
    ((0, 1, 2, 3), (1, 5, 9), (0, 3, 4), None)
    """
    words = group.split(" ")
    text = words[-2] if len(words) > 1 else ""
    if not text or CUT_OFF in group:
        return None
    try:
        if "-" in text:
            first, _, rest = text.partition("-")
            last, _, stride = rest.partition(":")
            listed = range(int(first), int(last) + 1, int(stride or 1))
            return tuple(listed) if int(last) < limit("ranks") else None
        return tuple(map(int, text.split(",")))
    except ValueError:
        return None


def waiting_of(state: ProcessState, states: Mapping[int, ProcessState]) -> tuple[Waiting, ...]:
    """Return the ranks that a process waits for, each once; empty if it waits for none that is known."""
    found: dict[int, Waiting] = {}
    for call in waits_of(state):
        _, group = group_of(call)
        if call.pair is not None and group:
            ranks: Collection[int] = _not_entered(state, call, group, states)
        else:
            ranks = () if call.peer is None else (call.peer,)
        for rank in ranks:
            if rank != state.rank:
                found.setdefault(rank, Waiting(rank, call))
    return tuple(found.values())


def _not_entered(
    state: ProcessState, call: Call, group: str, states: Mapping[int, ProcessState]
) -> list[int]:
    """Return the members of a group that have issued fewer collectives in it than the process that waits."""
    members = ranks_in(group) or tuple(rank for rank, other in states.items() if group in other.groups)
    needed = (call.pair or 0) + 1
    late = []
    for rank in members:
        other = states.get(rank)
        if rank == state.rank:
            continue
        if other is None or (other.groups.get(group, 0) < needed and (other.groups or other.calls)):
            late.append(rank)
        elif not other.groups and not other.calls and (other.end_reason is not None or other.exists is False):
            late.append(rank)  # what it had issued is not known, but it will not issue this any more
    return late


def mismatches_of(states: Sequence[ProcessState]) -> list[Mismatch]:
    """Return the collectives for which ranks of one group wait in different operations."""
    found: dict[tuple[str, int], dict[str, list[int]]] = {}
    for state in states:
        for call in waits_of(state):
            operation, group = group_of(call)
            if call.pair is not None and group:
                found.setdefault((group, call.pair), {}).setdefault(operation, []).append(state.rank)
    return [
        Mismatch(group, number, {name: tuple(ranks) for name, ranks in operations.items()})
        for (group, number), operations in found.items()
        if len(operations) > 1
    ]
