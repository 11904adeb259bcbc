"""The length of the data of every action, and what every class would take if all steps had equally much data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.pair_shares import share_pairs
from stagescope.analysis.idle.microbatch_lengths import Pairs, Sample, fit_lengths
from stagescope.model.row_numbers import number_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.idle.usual_costs import UsualCosts

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

ROW = ["rank", "stage", "kind", "partner_stage", "partner_kind"]


class DataLengths(NamedTuple):
    """A factor for every action, 1 without data imbalance, and the balanced cost of every class in nanoseconds."""

    of_action: Floats
    balanced_ns: Floats


def find_data_lengths(
    actions: Actions, classes: pl.DataFrame, of_action: Integers, usual: UsualCosts, duration_ns: Floats
) -> DataLengths:
    """Return the lengths of the data; see microbatch_lengths.py.

    An overlapped pair has the lengths of two micro-batches, by their shares of its time. `classes` has one row per
    class with pipeline, step, and the columns of ROW.
    """
    nothing = DataLengths(np.ones(len(of_action)), usual.mean_ns)
    counts = (usual.mean_ns[of_action] > 0) & (duration_ns > 0) & ~usual.is_outlier
    rows = np.flatnonzero(counts)
    row_of_class, rank_of_row = _numbered(classes.select(ROW))
    if not len(rows) or classes.is_empty():
        return nothing
    value = np.log(duration_ns[rows] / usual.mean_ns[of_action[rows]])
    cells = actions.table.select("pipeline", "step", "microbatch")
    cell_of_action, _ = _numbered(cells, "pipeline")
    pairs = _find_pairs(actions, cells, cell_of_action)
    steps = classes.select("pipeline", "step").n_unique()
    sample = Sample(value, row_of_class[of_action[rows]], cell_of_action[rows], rank_of_row, steps)
    if pairs is not None:
        sample = sample._replace(pairs=Pairs(pairs.cell[rows], pairs.share[rows]))
    fitted = fit_lengths(sample)
    if fitted is None:
        return nothing
    weight, length = fitted
    of_row = weight[row_of_class[of_action]]
    factor = np.exp(of_row * length[cell_of_action])
    if pairs is not None:
        factor = pairs.share * factor + (1 - pairs.share) * np.exp(of_row * length[pairs.cell])
    mean = np.bincount(of_action, weights=factor, minlength=classes.height) / np.bincount(of_action)
    return DataLengths(factor / mean[of_action], _balanced(classes, usual.mean_ns, row_of_class, rank_of_row))


def _find_pairs(actions: Actions, cells: pl.DataFrame, cell_of_action: Integers) -> Pairs | None:
    """Return the cell of the second micro-batch of every action, and the share of the first; None without pairs."""
    partners = actions.partners
    if partners.is_empty():
        return None
    at = partners["action"].to_numpy()
    numbers = cells.with_columns(number=pl.Series(cell_of_action)).unique()
    seconds = cells[at].with_columns(microbatch=partners["microbatch"])
    found = seconds.join(numbers, on=cells.columns, how="left", nulls_equal=True, maintain_order="left")
    cell, share = cell_of_action.copy(), np.ones(len(cell_of_action))
    cell[at] = found["number"].fill_null(pl.Series(cell_of_action[at])).to_numpy()
    share[at] = share_pairs(actions)
    return Pairs(cell, share)


def _balanced(classes: pl.DataFrame, mean_ns: Floats, row: Integers, rank_of_row: Integers) -> Floats:
    """Return what each class would take if its pipeline had as much data in the step as the others have on average."""
    usual_ns = classes.select("pipeline", "step").with_columns(row=pl.Series(row), mean=pl.Series(mean_ns))
    usual_ns = usual_ns.with_columns(usual=pl.col("mean").median().over("row"))
    value = np.log(np.maximum(mean_ns, 1) / np.maximum(usual_ns["usual"].to_numpy(), 1))
    cell, _ = _numbered(classes.select("pipeline", "step"), "pipeline")
    fitted = fit_lengths(Sample(value, row, cell, rank_of_row, classes["pipeline"].n_unique()))
    if fitted is None:
        return mean_ns
    weight, length = fitted
    of_step = (
        classes.select("step").with_columns(load=pl.Series(np.exp(length[cell]))).with_row_index("class")
    )
    loads = of_step.with_columns(mean=pl.col("load").mean().over("step"))
    surplus = np.log((loads["load"] / loads["mean"]).to_numpy())
    balanced: Floats = mean_ns / np.exp(weight[row] * surplus)
    return balanced


def _numbered(keys: pl.DataFrame, kept: str = "rank") -> tuple[Integers, Integers]:
    """Return the number of each row among the distinct rows, and one column of the distinct rows."""
    number, first = number_rows(keys)
    return number, keys[kept].to_numpy()[first].astype(np.int64)
