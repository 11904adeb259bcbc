"""Moments between the knots of the fit, and the values of clocks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from stagescope.clocks.evidence import Floats, Ints


def place_between(times_ns: Floats, at_ns: Floats) -> tuple[Ints, Floats]:
    """Return the last knot before each moment, and how far the moment is from it to the next one, from 0 to 1."""
    gap_ns = times_ns[1] - times_ns[0]
    place = np.clip((at_ns - times_ns[0]) // gap_ns, 0, len(times_ns) - 2).astype(np.int64)
    # Beyond the outermost knots the correction is constant: a linear extrapolation would diverge.
    return place, np.clip((at_ns - times_ns[place]) / gap_ns, 0.0, 1.0)


class Moments(NamedTuple):
    """Moments of clocks whose places are known: each round of the fit has other values for the same moments.

    `place` is that of the value at the knot before, in all values by knot and clock.
    """

    clock: Ints
    at_ns: Floats
    place: npt.NDArray[np.int32]
    fraction: Floats

    def interpolated(self, values: Floats) -> Floats:
        """Return the values of the clocks at the moments; `values` are by knot and clock."""
        before, after = values[:-1].reshape(-1), values[1:].reshape(-1)
        return np.asarray(before[self.place] * (1 - self.fraction) + after[self.place] * self.fraction)


def moments_of(times_ns: Floats, clocks: int, clock: Ints, at_ns: Floats) -> Moments:
    """Return moments with their places between knots."""
    place, fraction = place_between(times_ns, at_ns)
    return Moments(clock, at_ns, (place * clocks + clock).astype(np.int32), fraction)
