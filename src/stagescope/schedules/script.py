"""One rank's actions from a script in the papers' notation: ``(3, "I1 W1 F1")`` is three times I1 W1 F1.

The digit is the rank's chunk, not the stage; actions of one kind and chunk take the micro-batches in order, so
the script needs no numbers. ``F0+B1`` is an overlapped pair, and a ``W`` without a chunk is the oldest
weight gradient that is still to be computed.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.action import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Chunk(NamedTuple):
    """The stage that a rank's chunk is, and the first of the micro-batches that go through it."""

    stage: int
    first_microbatch: int = 0


def perform(script: Iterable[tuple[int, str]], chunks: Sequence[Chunk]) -> list[Action]:
    """Return the actions that a script stands for; `chunks` are the rank's chunks 0 and 1.

    >>> script = [(2, "F0"), (1, "F1+B0"), (1, "I0 W")]
    >>> " ".join(map(str, perform(script, [Chunk(stage=0), Chunk(stage=3)])))
    'F0.0 F0.1 F3.0+B0.0 I0.1 W0.1'
    """
    cast = _Cast(chunks)
    return [cast.play(word) for times, line in script for _ in range(times) for word in line.split()]


class _Cast:
    """The next micro-batch of every kind and chunk, and the weight gradients that wait."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._forwards = [chunk.first_microbatch for chunk in chunks]
        self._backwards = [chunk.first_microbatch for chunk in chunks]
        self._waiting: deque[Action] = deque()

    def play(self, word: str) -> Action:
        """Return the action of one word of the script."""
        first, _, second = word.partition("+")
        action = self._action(first)
        return action._replace(partner=self._action(second)) if second else action

    def _action(self, word: str) -> Action:
        if word == "W":
            return self._waiting.popleft()
        kind, chunk = word[0], int(word[1:])
        if kind == "W":
            return self._oldest_of(self._chunks[chunk].stage)
        counts = self._forwards if kind == "F" else self._backwards
        action = Action(kind, self._chunks[chunk].stage, counts[chunk])
        counts[chunk] += 1
        if kind == "I":
            self._waiting.append(action._replace(kind="W"))
        return action

    def _oldest_of(self, stage: int) -> Action:
        action = next(each for each in self._waiting if each.stage == stage)
        self._waiting.remove(action)
        return action
