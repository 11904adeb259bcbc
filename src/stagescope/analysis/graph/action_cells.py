"""Numbers for actions, so that the action that another one needs is found by arithmetic and one look-up.

A cell is one (pipeline, step, stage, micro-batch). Joins on these four columns take minutes on a large run.
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
"""What a look-up answers: no action there, or more than one."""

WIDEST_TABLE = 1 << 24
"""Values this far apart are searched for in a sorted list instead of a table."""

CELLS_PER_ACTION = 8
"""So many cells per action may be kept as a table; ids that are spread wider are searched for."""


@dataclass(frozen=True)
class Cells:
    """The values that occur in each of the four columns, sorted; a cell's number counts through them."""

    pipelines: Integers
    steps: Integers
    stages: Integers
    microbatches: Integers

    @property
    def count(self) -> int:
        """How many cells there are."""
        return len(self.pipelines) * len(self.steps) * len(self.stages) * len(self.microbatches)

    def numbers(self, frame: pl.DataFrame) -> Integers:
        """Return the cell of every row of a frame with the four columns; NONE for values that do not occur."""
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
        cell[unknown] = NONE
        return cell

    def neighbors(self, cells: Integers, direction: int) -> Integers:
        """Return the same micro-batch's cell on the stage before (-1) or after (+1); NONE where none occurs."""
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
    """Return the place of each value in `known`, which is sorted; NONE for a value that is not there."""
    if not len(known):
        return np.full(len(values), NONE, dtype=np.int64)
    lowest, highest = int(known[0]), int(known[-1])
    is_inside = len(values) == 0 or (values.min() >= lowest and values.max() <= highest)
    if is_inside and highest - lowest < WIDEST_TABLE:  # the usual case, with as few copies as possible
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
    """Return the place in `known` of every value from its first to its last; NONE for those that are not there."""
    table = np.full(int(known[-1] - known[0]) + 1, NONE, dtype=np.int64)
    table[known - known[0]] = np.arange(len(known))
    return table


class ActionIndex:
    """Which action runs a cell, among the actions of one sort (all forwards, say)."""

    def __init__(self, cells: Integers, actions: Integers, cell_count: int) -> None:
        self._table: Integers | None = None
        if cell_count <= CELLS_PER_ACTION * len(cells) + WIDEST_TABLE:
            self._table = np.full(cell_count + 1, NONE, dtype=np.int64)  # the last one answers for cell NONE
            self._table[cells] = actions
            self._table[cells[self._table[cells] != actions]] = DOUBLED
        else:
            order = np.argsort(cells, kind="stable")
            self._cells, self._actions = cells[order], actions[order]

    def find(self, cells: Integers) -> Integers:
        """Return the action of every cell, NONE where there is none and DOUBLED where there are several."""
        if self._table is not None:
            found: Integers = self._table[cells]
            return found
        if not len(self._cells):
            return np.full(len(cells), NONE, dtype=np.int64)
        first = np.searchsorted(self._cells, cells, side="left")
        count = np.searchsorted(self._cells, cells, side="right") - first
        actions = self._actions[np.minimum(first, len(self._actions) - 1)]
        return np.where(count == 1, actions, np.where(count == 0, NONE, DOUBLED))
