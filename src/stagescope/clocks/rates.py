"""What the delays of pairs of clocks show about their rates: changes, stretches of constant rate, and corners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class RateChange:
    """A change of the rate of a pair: at `at_ns`, certainly between `from_ns` and `to_ns` of the clock `one`.

    `rates` are how fast the clock `other` gains on `one` before and after it, and `rate_error` is the error of their
    difference. `ahead_ns` is by how much the other clock is ahead at that moment, and `error_ns` the error of the
    offset that follows from that of the moment.
    """

    one: int
    other: int
    at_ns: float
    from_ns: float
    to_ns: float
    rates: tuple[float, float]
    rate_error: float
    ahead_ns: float
    error_ns: float

    def size_of(self, clock: int) -> float:
        """Return the change of the logarithm of a clock's rate, if that clock caused it."""
        before, after = self.rates
        change = float(np.log1p(after) - np.log1p(before))
        return change if clock == self.other else -change

    def when(self, clock: int) -> tuple[float, float, float]:
        """Return the moment, and between which moments it is, on one of the two clocks, in coarse time."""
        shift_ns = self.ahead_ns if clock == self.other else 0.0
        return self.at_ns + shift_ns, self.from_ns + shift_ns, self.to_ns + shift_ns


class Stretch(NamedTuple):
    """A stretch of constant rate of a pair, on the clock `one`, and by how much the other is ahead at its begin.

    `rate` is how fast the clock `other` gains on `one`.
    """

    one: int
    other: int
    from_ns: float
    to_ns: float
    ahead_ns: float
    rate: float = 0.0

    def contains(self, clock: int, at_ns: float, margin_ns: float) -> bool:
        """Return whether the rate is constant around a moment of one of the two clocks."""
        at_ns -= self.ahead_ns if clock == self.other else 0.0
        return self.from_ns + margin_ns <= at_ns <= self.to_ns - margin_ns


class Corner(NamedTuple):
    """A moment, between two of the clock `one`, at which the delays of a pair change their course abruptly.

    A clock was slewed or set, or the path changed. What it was, and which clock, the pair alone does not show.
    """

    one: int
    other: int
    from_ns: float
    to_ns: float


class RateChanges(NamedTuple):
    """The changes of the rate of all pairs, the stretches of constant rate of all pairs, and unexplained corners.

    Pairs without a change, or with too few observations, have one stretch or none.
    """

    changes: list[RateChange]
    stretches: list[Stretch]
    corners: list[Corner]
