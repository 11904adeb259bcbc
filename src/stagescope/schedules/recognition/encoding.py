"""The order of one rank encoded as integers, so that two orders of the same actions can be compared quickly.

A full backward is encoded as its two halves, I immediately followed by W: whether a trace or a schedule has ``B3.1`` or
``I3.1 W3.1`` then makes no difference. If the trace has no W, none are encoded.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from operator import le
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.schedules.action import Action

F, I, W = range(3)  # noqa: E741  # the letter of the papers
# A code has the stage above bit 32, then the micro-batch, and the kind in the lowest 2 bits. One dict look-up per
# integer costs a fraction of one per NamedTuple, and orders have hundreds of thousands of actions.
_STAGE_BITS, _KIND_BITS = 32, 2
_MICROBATCHES = (1 << (_STAGE_BITS - _KIND_BITS)) - 1
_KINDS = (1 << _KIND_BITS) - 1
_KIND_CODES = {"F": F, "B": I, "I": I, "W": W}


class DecodedAction(NamedTuple):
    """The action of a code; `kind` is F, I or W."""

    kind: int
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{'FBW'[self.kind]}{self.stage}.{self.microbatch}"


class EncodedOrder(NamedTuple):
    """The codes of the actions of one rank in order, and for each forward in a pair the backward of the pair."""

    codes: list[int]
    pairs: dict[int, int]


def encode(kind: int, stage: int, microbatch: int) -> int:
    """Return the code of an action."""
    return stage << _STAGE_BITS | microbatch << _KIND_BITS | kind


def decode(code: int) -> DecodedAction:
    """Return the action of a code."""
    return DecodedAction(code & _KINDS, code >> _STAGE_BITS, code >> _KIND_BITS & _MICROBATCHES)


def encode_order(actions: Iterable[Action], *, weights: bool) -> EncodedOrder:
    """Return the actions of a rank as codes, the forward of a pair first; without W unless `weights`."""
    codes: list[int] = []
    pairs: dict[int, int] = {}
    for action in actions:
        kind, stage, microbatch, partner = action
        if partner is not None:
            forward, backward = sorted(action.parts, key=lambda part: part.kind != "F")
            first = encode(_KIND_CODES[forward.kind], *forward[1:3])
            second = encode(_KIND_CODES[backward.kind], *backward[1:3])
            pairs[first] = second
            codes += [first, second]
            if weights and backward.kind == "B":
                codes.append(second + W - I)
            continue
        code = (
            stage << _STAGE_BITS | microbatch << _KIND_BITS | _KIND_CODES[kind]
        )  # inlined `encode`: the hot path
        if kind != "W" or weights:
            codes.append(code)
        if kind == "B" and weights:
            codes.append(code + W - I)
    return EncodedOrder(codes, pairs)


def longest_increasing(places: Sequence[int]) -> int:
    """Return the length of the longest increasing subsequence, in O(n log n) by patience sorting.

    >>> longest_increasing([0, 3, 1, 2, 4])
    4
    """
    if all(map(le, places, places[1:])):  # nearly all ranks of a matching order: no search needed
        return len(places)
    ends: list[int] = []
    for place in places:
        at = bisect_left(ends, place)
        ends[at : at + 1] = [place]
    return len(ends)


def count_misplaced(measured: EncodedOrder, theory: EncodedOrder, *, paired: bool) -> int:
    """Return how many actions of a measured order are at a different position in theory.

    This is the smallest number of actions to move or remove. Actions that were not measured do not count. With
    `paired`, each forward that runs in a different pair than in theory, or in none, counts as well.
    """
    place = {code: at for at, code in enumerate(measured.codes)}
    places = [place[code] for code in theory.codes if code in place]
    # What is not on the longest increasing subsequence has to be moved; actions unknown to theory have to be removed.
    moved = len(measured.codes) - longest_increasing(places)
    if not paired:
        return moved
    expected = {f: b for f, b in theory.pairs.items() if f in place and b in place}
    return moved + len(dict(measured.pairs.items() ^ expected.items()))


def peak_activations(order: EncodedOrder) -> int:
    """Return the largest number of activations that a rank keeps, from each F to its W, or to its I without W."""
    kinds = [code & _KINDS for code in order.codes]
    end = W if W in kinds else I
    return max(accumulate((kind == F) - (kind == end) for kind in kinds), default=0)
