"""What every order has that was searched from costs, whatever the costs were.

The searches of zero-bubble orders (zb-1p, zb-2p, and zb-v with costs) give other orders for other costs, so no
list of orders holds them all. What they share: the actions of a kind run in the order of micro-batches; after the
warm-up F and I take turns, nearly always; no rank keeps more activations than the search was allowed.
Seen to hold for random costs to 8 ranks and 24 micro-batches, where at most a quarter of the turns are broken.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.recognition.lines import F, I, W, action_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.schedules.recognition.lines import Line, NumberedAction

FEWEST_TURNS = 24
"""Below this many turns on all ranks together, taking turns may be chance."""

BROKEN_TURNS = 1 / 4
"""The largest share of turns in which the same kind of action runs again."""


class Peak(NamedTuple):
    """The most activations that a rank kept: at least, and at most if all that is missing was kept too."""

    least: int
    most: int


def names_by_traits(placement: str, lines: Sequence[Line]) -> tuple[str, ...]:
    """Return the searched schedules that an order has the traits of: none, one, or two that are as likely.

    `lines` show weight gradients; some actions may be missing.
    """
    actions = [[action_of(number) for number in line.numbers] for line in lines]
    if not all(_in_order(each) for each in actions) or not takes_turns(actions):
        return ()
    ranks = len(lines)
    peaks = [peak(each) for each in actions]
    least, most = max(each.least for each in peaks), max(each.most for each in peaks)
    if placement == "v":
        return ("zb-v",) if most <= 2 * ranks else ()
    if most <= ranks:
        return ("zb-1p", "zb-2p")
    if most > 2 * ranks:
        return ()
    return ("zb-2p",) if least > ranks else ()


def takes_turns(ranks: Iterable[Sequence[NumberedAction]]) -> bool:
    """Tell whether F and I take turns between a rank's first I and its last F, over all ranks."""
    turns = broken = 0
    for actions in ranks:
        kinds = [action.kind for action in actions if action.kind != W]
        if F in kinds and I in kinds:
            end = len(kinds) - kinds[::-1].index(F)
            steady = list(pairwise(kinds[kinds.index(I) : end]))
            turns += len(steady)
            broken += sum(first == second for first, second in steady)
    return turns >= FEWEST_TURNS and broken <= BROKEN_TURNS * turns


def peak(actions: Sequence[NumberedAction]) -> Peak:
    """Return how many activations a rank keeps at most, each from its F to its W.

    >>> from stagescope.schedules.recognition.lines import F, I, W, NumberedAction
    >>> peak([NumberedAction(F, 0, 0), NumberedAction(F, 0, 1), NumberedAction(I, 0, 0), NumberedAction(W, 0, 0), NumberedAction(I, 0, 1)])
    Peak(least=1, most=2)
    """
    started = {action[1:] for action in actions if action.kind == F}
    ended = {action[1:] for action in actions if action.kind == W}
    held = least = 0
    for action in actions:
        if action[1:] in started and action[1:] in ended:
            held += (action.kind == F) - (action.kind == W)
            least = max(least, held)
    return Peak(least, least + len({action[1:] for action in actions} - (started & ended)))


def _in_order(actions: Sequence[NumberedAction]) -> bool:
    """Tell whether the actions of each kind and stage run in the order of micro-batches."""
    last: dict[tuple[int, int], int] = {}
    for action in actions:
        if action.microbatch < last.get(action[:2], 0):
            return False
        last[action[:2]] = action.microbatch
    return True
