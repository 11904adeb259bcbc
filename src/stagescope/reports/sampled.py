"""Which rows are shown where there are too many: evenly spaced ones, from the first to the last."""

from __future__ import annotations

import numpy as np

MOST_RANKS = 40
MOST_ALIKE_RANKS = 16
"""Shown of more than `MOST_RANKS` ranks of a simulation: without noise, neighbors look alike."""


def evenly_chosen(count: int, most: int) -> list[int]:
    """Return the indexes 0 to count - 1, or if that is more than `most`, evenly spaced ones from first to last."""
    return [int(index) for index in np.linspace(0, count - 1, min(count, most)).round()]


def chosen_ranks(count: int, *, is_simulated: bool) -> list[int]:
    """Return the indexes of the ranks that a chart shows."""
    return evenly_chosen(count, MOST_ALIKE_RANKS if is_simulated and count > MOST_RANKS else MOST_RANKS)
