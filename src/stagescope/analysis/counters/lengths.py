"""Whether the sizes of micro-batches explain why some of them take longer than others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.counters.data_sizes import UNITS, unit_of
from stagescope.vocabulary.counters import LONGEST_SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions

    Floats = NDArray[np.float64]

FEWEST_MICROBATCHES = 8
CLOSE, NONE_AT_ALL = 0.8, 0.3
"""Correlations from which on, and up to which, a sentence states a relation, or that there is none."""

EQUAL = 1e-9
"""Logarithms that differ by less are those of equal sizes."""

SIZES = (*UNITS, LONGEST_SEQUENCE)
"""The counters that state the size of a micro-batch."""

_CELL = ["pipeline", "step", "microbatch"]
_NOUNS = {
    "tokens": "numbers of tokens",
    "samples": "numbers of samples",
    LONGEST_SEQUENCE: "longest sequences",
}


def lengths_sentence_part(
    actions: Actions,
    length_of_action: Floats,
    sizes: pl.DataFrame,
    units: Collection[str],
    steps: Collection[int],
) -> str | None:
    """Return how the lengths of micro-batches in `steps` relate to their sizes; None if no sizes were recorded.

    `length_of_action` is the factor by which the actions of each micro-batch take longer than others (ActionClasses).
    `sizes` is from microbatch_sizes, for SIZES, and `units` from units_in. Of several counters, the one that is related
    most closely is named. A correlation proves no cause.
    """
    unit = unit_of(units)
    names = [name for name in (unit, LONGEST_SEQUENCE) if name is not None]
    cells = (
        actions.table.select(_CELL)
        .with_columns(length=pl.Series(length_of_action))
        .filter(pl.col("step").is_in(list(steps)))
        .group_by(_CELL)
        .agg(pl.mean("length"))
        .sort(_CELL)
    )
    texts = []
    for name in names:
        own = sizes.filter((pl.col("name") == name) & (pl.col("size") > 0))
        both = cells.join(own, on=_CELL, maintain_order="left").filter(pl.col("length") > 0)
        if both.height >= FEWEST_MICROBATCHES:
            texts.append(_relation(name, _within_steps(both, "length"), _within_steps(both, "size")))
    return max(texts, key=lambda each: each[0])[1] if texts else None


def _within_steps(cells: pl.DataFrame, column: str) -> Floats:
    """Return logarithms relative to their mean in each step: lengths of micro-batches compare those of one step."""
    value = pl.col(column).log()
    centered: Floats = cells.select(value - value.mean().over("pipeline", "step")).to_series().to_numpy()
    return centered


def _relation(name: str, length: Floats, size: Floats) -> tuple[float, str | None]:
    """Return the correlation of lengths and sizes, and the relation in words; None for one that is neither."""
    noun = _NOUNS[name]
    if np.ptp(size) < EQUAL:
        return 0.0, f"although their {noun} are equal"
    if np.ptp(length) < EQUAL:
        return 0.0, None
    correlation = float(np.corrcoef(length, size)[0, 1])
    if correlation >= CLOSE:
        return correlation, f"with their {noun} (correlation {correlation:.2f}, n = {len(size)})"
    if correlation <= NONE_AT_ALL:
        return correlation, f"but not with their {noun} (correlation {correlation:.2f}, n = {len(size)})"
    return correlation, None
