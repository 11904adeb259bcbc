"""What the actions of a class usually take: their mean without outliers, and its standard error."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

OUTLIER_RATIO = 1.5
OUTLIER_DEVIATIONS = 12.0
"""An action is an outlier of its class beyond 1.5 times the median, and 12 times the median deviation above it. The
second keeps actions of micro-batches whose lengths differ by a factor of three.
"""

SHARED_FRACTION = 0.5
"""An action is no outlier if its micro-batch exceeds what is usual by this fraction of its own excess everywhere: then
the data are long.
"""

FEWEST_ACTIONS = 4
"""Of fewer actions none is an outlier: it is unknown which of them are usual."""


class UsualCosts(NamedTuple):
    """Mean and standard error per class in nanoseconds, and which actions are outliers."""

    mean_ns: Floats
    error_ns: Floats
    is_outlier: NDArray[np.bool_]


def find_usual_costs(
    duration_ns: Floats, of_action: Integers, classes: int, cell: Integers | None = None
) -> UsualCosts:
    """Return the usual costs of the classes, given the duration and the class of every action.

    `cell` is the number of the micro-batch of every action, in its pipeline and step; None: no action shares one.
    """
    is_outlier = _outliers(duration_ns, of_action, classes)
    if cell is not None and is_outlier.any():
        is_outlier &= ~_shared(duration_ns, of_action, cell, is_outlier)
    kept = ~is_outlier
    count = np.bincount(of_action[kept], minlength=classes)
    mean_ns = np.bincount(of_action[kept], weights=duration_ns[kept], minlength=classes) / np.maximum(
        count, 1
    )
    squares = np.bincount(
        of_action[kept], weights=(duration_ns - mean_ns[of_action])[kept] ** 2, minlength=classes
    )
    error_ns = np.sqrt(squares / np.maximum(count - 1, 1) / np.maximum(count, 1))
    return UsualCosts(mean_ns, error_ns, is_outlier)


def _outliers(duration_ns: Floats, of_action: Integers, classes: int) -> NDArray[np.bool_]:
    count = np.bincount(of_action, minlength=classes)
    mean_ns = np.bincount(of_action, weights=duration_ns, minlength=classes) / np.maximum(count, 1)
    longest_ns = np.zeros(classes)
    np.maximum.at(longest_ns, of_action, duration_ns)
    # Medians are only needed for the few classes that may have an outlier.
    suspect = (count >= FEWEST_ACTIONS) & (longest_ns > OUTLIER_RATIO * mean_ns)
    is_outlier = np.zeros(len(duration_ns), dtype=np.bool_)
    rows = np.flatnonzero(suspect[of_action])
    group, values = of_action[rows], duration_ns[rows]
    median_ns = medians(values, group, classes)
    deviation_ns = medians(np.abs(values - median_ns[group]), group, classes)
    limit_ns = median_ns + np.maximum((OUTLIER_RATIO - 1) * median_ns, OUTLIER_DEVIATIONS * deviation_ns)
    is_outlier[rows] = values > limit_ns[group]
    return is_outlier


def _shared(
    duration_ns: Floats, of_action: Integers, cell: Integers, is_outlier: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return which outliers are as long as the other actions of their micro-batch, compared with what is usual."""
    rows = np.flatnonzero(np.isin(cell, cell[is_outlier]))
    touched = np.isin(of_action, of_action[rows])
    classes = int(of_action.max()) + 1
    usual_ns = medians(duration_ns[touched], of_action[touched], classes)
    numbers = np.unique(cell[rows], return_inverse=True)[1]
    ratio = duration_ns[rows] / np.maximum(usual_ns[of_action[rows]], 1)
    # The lower median: of two actions, a single long one is not shared.
    typical = medians(ratio, numbers, int(numbers.max()) + 1, low=True)[numbers]
    shared = np.zeros(len(duration_ns), dtype=np.bool_)
    shared[rows] = typical - 1 > SHARED_FRACTION * (ratio - 1)
    return shared


def medians(values: Floats, group: Integers, groups: int, *, low: bool = False) -> Floats:
    """Return the median of every group, with `low` the lower one of two in the middle; 0 for an empty group."""
    ordered = values[np.lexsort((values, group))]
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    has = count > 0
    found = np.zeros(groups)
    lower, upper = (first + (count - 1) // 2)[has], (first + count // 2)[has]
    found[has] = ordered[lower] if low else (ordered[lower] + ordered[upper]) / 2
    return found
