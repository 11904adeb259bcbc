"""Integer cells for actions, so that the producer of an input is found by arithmetic and one lookup.

A cell is one (pipeline, step, stage, micro-batch). Joins on these four columns take minutes for a large run, lookups
seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

NONE = -1
DOUBLED = -2
"""Results of a lookup: no action in that cell, or more than one."""

WIDEST_TABLE = 1 << 24
"""Up to this range of values a lookup table is used; beyond it, binary search."""

CELLS_PER_ACTION = 8
"""A table is used up to this many cells per action; sparser ids would take too much memory."""


@dataclass(frozen=True)
class Cells:
    """The sorted distinct values of the four columns; cells are numbered row-major over them."""

    pipelines: Integers
    steps: Integers
    stages: Integers
    microbatches: Integers

    @property
    def count(self) -> int:
        """The number of cells."""
        return len(self.pipelines) * len(self.steps) * len(self.stages) * len(self.microbatches)

    def numbers(self, frame: pl.DataFrame) -> Integers:
        """Return the cell of every row of a frame with the four columns; NONE for a value that does not occur."""
        cell: Integers = np.zeros(frame.height, dtype=np.int64)
        unknown = np.zeros(frame.height, dtype=np.bool_)
        for name, known in (
            ("pipeline", self.pipelines),
            ("step", self.steps),
            ("stage", self.stages),
            ("microbatch", self.microbatches),
        ):
            codes = codes_of(frame[name].to_numpy(), known)
            unknown |= codes < 0
            cell *= len(known)
            cell += codes
        cell[unknown] = NONE  # the arithmetic above gave unknown values some other cell
        return cell

    def neighbors(self, cells: Integers, direction: int) -> Integers:
        """Return the cell of the same micro-batch on the previous (-1) or next (+1) stage; NONE if there is none."""
        width, stages = len(self.microbatches), len(self.stages)
        code = (cells // width) % max(stages, 1)
        there = codes_of(self.stages + direction, self.stages)
        moved: Integers = cells + (there[code] - code) * width
        moved[(there[code] < 0) | (cells < 0)] = NONE
        return moved


def find_cells(actions: pl.DataFrame) -> Cells:
    """Return the cells of actions, a frame with pipeline, step, stage and microbatch."""
    return Cells(
        *(
            actions[name].unique().sort().to_numpy().astype(np.int64)
            for name in ("pipeline", "step", "stage", "microbatch")
        )
    )


def codes_of(values: NDArray[np.generic], known: Integers) -> Integers:
    """Return the index of each value in `known`, which is sorted; NONE for a value that is not in it."""
    if not len(known):
        return np.full(len(values), NONE, dtype=np.int64)
    lowest, highest = int(known[0]), int(known[-1])
    is_inside = len(values) == 0 or (values.min() >= lowest and values.max() <= highest)
    if is_inside and highest - lowest < WIDEST_TABLE:  # the common case: no copy of the column
        found: Integers = _places(known)[values - lowest]
        return found
    wide = values.astype(np.int64)
    clipped = np.clip(wide, lowest, highest)
    if highest - lowest < WIDEST_TABLE:
        codes: Integers = _places(known)[clipped - lowest]
    else:
        codes = np.searchsorted(known, clipped)
        codes[known[codes] != clipped] = NONE
    codes[clipped != wide] = NONE
    return codes


def _places(known: Integers) -> Integers:
    """Return the index in `known` of every value from its first to its last; NONE for values that are not in it."""
    table = np.full(int(known[-1] - known[0]) + 1, NONE, dtype=np.int64)
    table[known - known[0]] = np.arange(len(known))
    return table


class ActionIndex:
    """The action in each cell, among the actions of one kind (all forwards, for example)."""

    def __init__(self, cells: Integers, actions: Integers, cell_count: int) -> None:
        self._table: Integers | None = None
        if cell_count <= CELLS_PER_ACTION * len(cells) + WIDEST_TABLE:
            self._table = np.full(
                cell_count + 1, NONE, dtype=np.int64
            )  # cell NONE is -1: it reads the extra last entry
            self._table[cells] = actions
            self._table[cells[self._table[cells] != actions]] = DOUBLED
        else:
            order = np.argsort(cells, kind="stable")
            self._cells, self._actions = cells[order], actions[order]

    def find(self, cells: Integers) -> Integers:
        """Return the action of every cell: NONE for no action, DOUBLED for several."""
        if self._table is not None:
            found: Integers = self._table[cells]
            return found
        if not len(self._cells):
            return np.full(len(cells), NONE, dtype=np.int64)
        first = np.searchsorted(self._cells, cells, side="left")
        count = np.searchsorted(self._cells, cells, side="right") - first
        actions = self._actions[np.minimum(first, len(self._actions) - 1)]
        return np.where(count == 1, actions, np.where(count == 0, NONE, DOUBLED))
