"""The actions of one rank from a script in the notation of the papers: ``(3, "I1 W1 F1")`` is I1 W1 F1 three times.

The digit is the chunk of the rank, not the stage. The actions of one kind and chunk take the micro-batches in order,
so the script needs no micro-batch numbers. ``F0+B1`` is an overlapped pair, and a ``W`` without a chunk is the oldest
weight gradient that is still pending.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Chunk(NamedTuple):
    """The stage of a chunk, and the first of the micro-batches that go through it."""

    stage: int
    first_microbatch: int = 0


def expand_script(script: Iterable[tuple[int, str]], chunks: Sequence[Chunk]) -> list[Action]:
    """Return the actions of a script; `chunks` are chunks 0 and 1 of the rank.

    >>> script = [(2, "F0"), (1, "F1+B0"), (1, "I0 W")]
    >>> " ".join(map(str, expand_script(script, [Chunk(stage=0), Chunk(stage=3)])))
    'F0.0 F0.1 F3.0+B0.0 I0.1 W0.1'
    """
    counters = _Counters(chunks)
    return [
        counters.next_action(word) for times, line in script for _ in range(times) for word in line.split()
    ]


class _Counters:
    """The next micro-batch of every kind and chunk, and the pending weight gradients."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._forwards = [chunk.first_microbatch for chunk in chunks]
        self._backwards = [chunk.first_microbatch for chunk in chunks]
        self._pending: deque[Action] = deque()

    def next_action(self, word: str) -> Action:
        """Return the action for the next word of the script."""
        first, _, second = word.partition("+")
        action = self._action(first)
        return action._replace(partner=self._action(second)) if second else action

    def _action(self, word: str) -> Action:
        if word == "W":
            return self._pending.popleft()
        kind, chunk = word[0], int(word[1:])
        if kind == "W":
            return self._oldest_of(self._chunks[chunk].stage)
        counts = self._forwards if kind == "F" else self._backwards
        action = Action(kind, self._chunks[chunk].stage, counts[chunk])
        counts[chunk] += 1
        if kind == "I":
            self._pending.append(action._replace(kind="W"))
        return action

    def _oldest_of(self, stage: int) -> Action:
        action = next(each for each in self._pending if each.stage == stage)
        self._pending.remove(action)
        return action
