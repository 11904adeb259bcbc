"""Orders of one rank in which forwards and backwards alternate: warm-up, steady phase, cool-down.

All schedules of the 1F1B family consist of these phases. `forwards` and `backwards` are the actions of a rank in the
order of their turns; `warmup` is the number of forwards before the first backward, all of them if there are fewer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action

if TYPE_CHECKING:
    from collections.abc import Sequence


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """Return the warm-up, then F and B alternating, then the remaining backwards."""
    steady = max(len(forwards) - warmup, 0)
    turns = zip(forwards[warmup:], backwards, strict=False)
    return [*forwards[:warmup], *(action for turn in turns for action in turn), *backwards[steady:]]


def overlap(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """Return the same order with each F and B of the steady phase as one overlapped pair F+B."""
    steady = max(len(forwards) - warmup, 0)
    turns = zip(forwards[warmup:], backwards, strict=False)
    pairs = (Action("F", f.stage, f.microbatch, b) for f, b in turns)
    return [*forwards[:warmup], *pairs, *backwards[steady:]]


def split_backwards(actions: Sequence[Action], lag: int) -> list[Action]:
    """Return the same actions with every B split into I and W, each W after the I that comes `lag` backwards later.

    The last `lag` W are at the end.
    """
    split: list[Action] = []
    waiting: list[Action] = []
    done = 0
    for action in actions:
        if action.kind != "B":
            split.append(action)
            continue
        split.append(Action("I", action.stage, action.microbatch))
        waiting.append(Action("W", action.stage, action.microbatch))
        # With a lag of 0 each W follows its own I immediately.
        if len(waiting) - done > lag:
            split.append(waiting[done])
            done += 1
    return split + waiting[done:]
