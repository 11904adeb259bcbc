"""Traits that all searched orders share, whatever costs they were searched for.

The searches for zero-bubble orders (zb-1p, zb-2p, and zb-v with costs) find different orders for different costs, so
no list can contain all of them. All of them have these traits: the actions of a kind run in the order of
micro-batches; after the warm-up F and I alternate nearly always; no rank keeps more activations than the limit of the
search. This was checked with random costs up to 8 ranks and 24 micro-batches, where F and I fail to alternate in at
most a quarter of the turns.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from stagescope.schedules.recognition.encoding import F, I, W, decode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.schedules.recognition.encoding import DecodedAction, EncodedOrder

MIN_TURNS = 24
"""With fewer turns on all ranks together, alternation may be a coincidence."""

MAX_BROKEN_FRACTION = 1 / 4
"""The largest fraction of turns in which the same kind of action runs twice."""


class Peak(NamedTuple):
    """Bounds of the peak activations of a rank; `most` assumes that all incomplete micro-batches were kept too."""

    least: int
    most: int


def names_by_traits(placement: str, orders: Sequence[EncodedOrder]) -> tuple[str, ...]:
    """Return the searched schedules whose traits an order has: none, one, or two that are equally likely.

    `orders` include weight gradients; some actions may be missing.
    """
    actions = [[decode(code) for code in order.codes] for order in orders]
    if not all(_in_order(each) for each in actions) or not alternates(actions):
        return ()
    ranks = len(orders)
    peaks = [peak(each) for each in actions]
    least, most = max(each.least for each in peaks), max(each.most for each in peaks)
    # On a V, zb-v has 2 p chunk activations, which is p activations of a whole rank: the memory of 1F1B.
    if placement == "v":
        return ("zb-v",) if most <= 2 * ranks else ()
    # Within p activations both limits allow the order; above p only the larger one does.
    if most <= ranks:
        return ("zb-1p", "zb-2p")
    if most > 2 * ranks:
        return ()
    return ("zb-2p",) if least > ranks else ()


def alternates(ranks: Iterable[Sequence[DecodedAction]]) -> bool:
    """Return whether F and I alternate between the first I and the last F of a rank, over all ranks."""
    turns = broken = 0
    for actions in ranks:
        kinds = [action.kind for action in actions if action.kind != W]
        if F in kinds and I in kinds:
            # The warm-up (before the first I) has only F, the cool-down (after the last F) only I: both are excluded.
            end = len(kinds) - kinds[::-1].index(F)
            steady = list(pairwise(kinds[kinds.index(I) : end]))
            turns += len(steady)
            broken += sum(first == second for first, second in steady)
    return turns >= MIN_TURNS and broken <= MAX_BROKEN_FRACTION * turns


def peak(actions: Sequence[DecodedAction]) -> Peak:
    """Return the peak activations of a rank, each kept from its F to its W.

    >>> from stagescope.schedules.recognition.encoding import F, I, W, DecodedAction
    >>> actions = [(F, 0, 0), (F, 0, 1), (I, 0, 0), (W, 0, 0), (I, 0, 1)]
    >>> peak([DecodedAction(*action) for action in actions])
    Peak(least=1, most=2)
    """
    # A micro-batch without its F or W has no known duration: it is left out of `least` and fully counted in `most`.
    started = {action[1:] for action in actions if action.kind == F}
    ended = {action[1:] for action in actions if action.kind == W}
    held = least = 0
    for action in actions:
        if action[1:] in started and action[1:] in ended:
            held += (action.kind == F) - (action.kind == W)
            least = max(least, held)
    return Peak(least, least + len({action[1:] for action in actions} - (started & ended)))


def _in_order(actions: Sequence[DecodedAction]) -> bool:
    """Return whether the actions of each kind and stage run in the order of micro-batches."""
    last: dict[tuple[int, int], int] = {}
    for action in actions:
        # The key is kind and stage.
        if action.microbatch < last.get(action[:2], 0):
            return False
        last[action[:2]] = action.microbatch
    return True
