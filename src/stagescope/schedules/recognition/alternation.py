"""One rank's actions where forwards and backwards take turns: warm-up, steady phase, cool-down.

All schedules of the 1F1B family are made of these. `forwards` and `backwards` are a rank's actions in the order
of their turns, `warmup` the number of forwards before the first turn (all of them where there are fewer).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.schedules.action import Action

if TYPE_CHECKING:
    from collections.abc import Sequence


def alternate(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """Return the warm-up, then F and B in turn, then the backwards that are left."""
    steady = max(len(forwards) - warmup, 0)
    turns = zip(forwards[warmup:], backwards, strict=False)
    return [*forwards[:warmup], *(action for turn in turns for action in turn), *backwards[steady:]]


def overlap(forwards: Sequence[Action], backwards: Sequence[Action], warmup: int) -> list[Action]:
    """Return the same with each turn as one overlapped pair F+B."""
    steady = max(len(forwards) - warmup, 0)
    turns = zip(forwards[warmup:], backwards, strict=False)
    pairs = (Action("F", f.stage, f.microbatch, b) for f, b in turns)
    return [*forwards[:warmup], *pairs, *backwards[steady:]]


def split_backwards(actions: Sequence[Action], lag: int) -> list[Action]:
    """Return the same actions with every B as I and W, each W following the I that comes `lag` backwards later.

    The last `lag` W stand at the end.
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
        if len(waiting) - done > lag:
            split.append(waiting[done])
            done += 1
    return split + waiting[done:]
