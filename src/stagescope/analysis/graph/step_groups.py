"""The rows of the sorted actions table that belong to each step and rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Times = NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True)
class StepGroups:
    """The first row of every pipeline and step, and of every rank in it.

    `steps` has one row per pipeline and step (pipeline, step, ranks), `ranks` one per rank in it (pipeline, step,
    rank); `step_of_rank` maps the rows of `ranks` to rows of `steps`. `actions` is the number of actions.
    """

    steps: pl.DataFrame
    ranks: pl.DataFrame
    first_of_step: Integers
    first_of_rank: Integers
    step_of_rank: Integers
    actions: int

    def makespan_ns(self, end_ns: Times) -> Times:
        """Return the last of the given ends in every step."""
        return _reduce(np.maximum, end_ns, self.first_of_step)

    def last_of_ranks(self, of_rank: Times) -> Times:
        """Return the largest of the given values of the ranks in every step."""
        return _reduce(np.maximum, of_rank, np.searchsorted(self.first_of_rank, self.first_of_step))

    def first_start_ns(self, table: pl.DataFrame) -> Integers:
        """Return the first start in every step."""
        return _reduce(np.minimum, table["start_ns"].to_numpy(), self.first_of_step).astype(np.int64)

    def window_ns(self, table: pl.DataFrame) -> Integers:
        """Return the time from the first start to the last end in every step."""
        last_ns = self.makespan_ns(table["end_ns"].to_numpy()).astype(np.int64)
        window_ns: Integers = last_ns - self.first_start_ns(table)
        return window_ns

    def work_ns(self, cost_ns: Times) -> Times:
        """Return the sum of costs of every rank in every step."""
        return _reduce(np.add, cost_ns, self.first_of_rank)

    def mean_over_ranks(self, of_rank: Times) -> NDArray[np.float64]:
        """Return the mean over the ranks of every step."""
        sums = np.bincount(self.step_of_rank, weights=of_rank, minlength=self.steps.height)
        means: NDArray[np.float64] = sums / np.maximum(self.steps["ranks"].to_numpy(), 1)
        return means

    def step_of_action(self) -> Integers:
        """Return the row of `steps` of every action."""
        lengths = np.diff(self.first_of_step, append=self.actions)
        return np.repeat(np.arange(len(lengths)), lengths)


def group_actions(table: pl.DataFrame) -> StepGroups:
    """Return the groups of an actions table, which is sorted by pipeline, step and rank."""
    first_of_rank = np.flatnonzero(table["place"].to_numpy() == 0)
    ranks = table.select(pl.col("pipeline", "step", "rank").gather(first_of_rank))
    pipeline, step = ranks["pipeline"].to_numpy(), ranks["step"].to_numpy()
    begins = np.ones(ranks.height, dtype=np.bool_)
    begins[1:] = (pipeline[1:] != pipeline[:-1]) | (step[1:] != step[:-1])
    step_of_rank = np.cumsum(begins) - 1
    counts = np.bincount(step_of_rank, minlength=int(begins.sum()))
    steps = ranks.select("pipeline", "step").filter(pl.Series(begins))
    return StepGroups(
        steps.with_columns(ranks=pl.Series(counts, dtype=pl.UInt32)),
        ranks,
        first_of_rank[begins],
        first_of_rank,
        step_of_rank,
        table.height,
    )


def _reduce(how: np.ufunc, values: Times, first: Integers) -> Times:
    reduced: Times = how.reduceat(values, first) if len(first) else values[:0]
    return reduced
