"""The length of the data of every action, and how much every class becomes longer with the data of its step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.pair_shares import share_pairs, times_alone
from stagescope.analysis.idle.microbatch_lengths import Fit, Pairs, Sample, fit_lengths, lengths_of
from stagescope.model.row_numbers import number_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.idle.usual_costs import UsualCosts

    Integers = NDArray[np.int64]
    Floats = NDArray[np.float64]

ROW = ["rank", "stage", "kind", "partner_stage", "partner_kind"]


class Weights(NamedTuple):
    """How much longer the actions of a rank become with their data: the columns of ROW, weight and before of a Fit."""

    of_row: pl.DataFrame
    ratio: float


class UsualLengths(NamedTuple):
    """What is learned about the lengths of data in a run.

    `alone` is from times_alone. `microbatches` and `steps` are None if their lengths are not more than noise; `means`
    has the columns of ROW and usual_ns, the median over pipelines and steps of what actions take.
    """

    alone: pl.DataFrame
    microbatches: Weights | None = None
    steps: Weights | None = None
    means: pl.DataFrame | None = None


class DataLengths(NamedTuple):
    """A factor for every action, 1 without data imbalance, and what the data of a step change in every class.

    The data of a step are `load_of_class` times what is usual, which costs the class that to the power of
    `weight_of_class`. `usual` is what was learned about lengths.
    """

    of_action: Floats
    weight_of_class: Floats
    load_of_class: Floats
    usual: UsualLengths


class Classes(NamedTuple):
    """Classes of actions in `table`, with pipeline, step and the columns of ROW; the class of every action; costs."""

    table: pl.DataFrame
    of_action: Integers
    costs: UsualCosts


class _Rows(NamedTuple):
    """What has a weight: the columns of ROW, and the number of the row of every class."""

    keys: pl.DataFrame
    of_class: Integers

    @property
    def ranks(self) -> Integers:
        """The rank of every row."""
        ranks: Integers = self.keys["rank"].to_numpy().astype(np.int64)
        return ranks


class _Fitted(NamedTuple):
    """The weight of every row, the length of every cell, and what was learned."""

    weight: Floats
    length: Floats
    learned: Weights


def find_data_lengths(
    actions: Actions, classes: Classes, duration_ns: Floats, usual: UsualLengths | None = None
) -> DataLengths:
    """Return the lengths of the data; see microbatch_lengths.py.

    An overlapped pair has the lengths of two micro-batches, by their shares of its time. `usual` is what is known of
    the run; None: it is learned from these actions.
    """
    table, of_action, costs = classes
    known = usual or UsualLengths(times_alone(actions))
    used = np.flatnonzero((costs.mean_ns[of_action] > 0) & (duration_ns > 0) & ~costs.is_outlier)
    rows = _rows_of(table)
    nothing = DataLengths(np.ones(len(of_action)), np.zeros(table.height), np.ones(table.height), known)
    if not len(used):
        return nothing
    value = np.log(duration_ns[used] / costs.mean_ns[of_action[used]])
    cells = actions.table.select("pipeline", "step", "microbatch")
    cell_of_action = _numbers(cells)
    pairs = _find_pairs(actions, cells, cell_of_action, known.alone)
    steps = table.select("pipeline", "step").n_unique()
    sample = Sample(value, rows.of_class[of_action[used]], cell_of_action[used], rows.ranks, steps)
    if pairs is not None:
        sample = sample._replace(pairs=Pairs(pairs.cell[used], pairs.share[used]))
    fitted = _fit(sample, rows) if usual is None else _apply(sample, rows, usual.microbatches)
    if fitted is None:
        return nothing
    of_row = fitted.weight[rows.of_class[of_action]]
    factor = np.exp(of_row * fitted.length[cell_of_action])
    if pairs is not None:
        factor = pairs.share * factor + (1 - pairs.share) * np.exp(of_row * fitted.length[pairs.cell])
    mean = np.bincount(of_action, weights=factor, minlength=table.height) / np.bincount(of_action)
    weight, load, found = _loads(classes, rows, usual)
    return DataLengths(
        factor / mean[of_action],
        weight,
        load,
        usual or found._replace(alone=known.alone, microbatches=fitted.learned),
    )


def _fit(sample: Sample, rows: _Rows) -> _Fitted | None:
    """Return weights and lengths, None if the lengths are not more than noise."""
    fitted = fit_lengths(sample)
    if fitted is None:
        return None
    fit, length = fitted
    weights = rows.keys.with_columns(weight=pl.Series(fit.weight), before=pl.Series(fit.before))
    return _Fitted(fit.weight, length, Weights(weights, fit.ratio))


def _apply(sample: Sample, rows: _Rows, learned: Weights | None) -> _Fitted | None:
    """Return the lengths with the weights of the run, which are 1 for rows that are unknown; None without any."""
    if learned is None:
        return None
    found = rows.keys.join(learned.of_row, on=ROW, how="left", nulls_equal=True, maintain_order="left")
    weight, before = (found[name].fill_null(1.0).to_numpy() for name in ("weight", "before"))
    return _Fitted(weight, lengths_of(sample, Fit(weight, before, learned.ratio)), learned)


def _find_pairs(
    actions: Actions, cells: pl.DataFrame, cell_of_action: Integers, alone: pl.DataFrame
) -> Pairs | None:
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
    share[at] = share_pairs(actions, alone)
    return Pairs(cell, share)


def _loads(classes: Classes, rows: _Rows, usual: UsualLengths | None) -> tuple[Floats, Floats, UsualLengths]:
    """Return the weight of each class, and how many times as much data as usual its pipeline had in the step.

    Also what was learned for that: `steps` and `means`.
    """
    table, _, costs = classes
    mean_ns = costs.mean_ns
    if usual is None or usual.means is None:
        each = pl.DataFrame({"row": rows.of_class, "mean_ns": mean_ns})
        medians = each.group_by("row").agg(pl.col("mean_ns").median()).sort("row")["mean_ns"]
        usual_ns, means = medians.to_numpy(), rows.keys.with_columns(usual_ns=medians)
    else:
        means = usual.means
        found = rows.keys.join(means, on=ROW, how="left", nulls_equal=True, maintain_order="left")
        usual_ns = found["usual_ns"].fill_null(np.nan).to_numpy()
    of_class_ns = usual_ns[rows.of_class]
    # Where it is unknown what is usual, data are neither long nor short.
    of_class_ns = np.where(np.isnan(of_class_ns), mean_ns, of_class_ns)
    value = np.log(np.maximum(mean_ns, 1) / np.maximum(of_class_ns, 1))
    cell = _numbers(table.select("pipeline", "step"))
    sample = Sample(value, rows.of_class, cell, rows.ranks, table["pipeline"].n_unique())
    fitted = _fit(sample, rows) if usual is None else _apply(sample, rows, usual.steps)
    learned = UsualLengths(pl.DataFrame(), steps=None if fitted is None else fitted.learned, means=means)
    if fitted is None:
        return np.zeros(table.height), np.ones(table.height), learned
    return fitted.weight[rows.of_class], np.exp(fitted.length[cell]), learned


def _rows_of(classes: pl.DataFrame) -> _Rows:
    keys = classes.select(ROW)
    number, first = number_rows(keys)
    return _Rows(keys[first], number)


def _numbers(keys: pl.DataFrame) -> Integers:
    """Return the number of each row among the distinct rows."""
    return number_rows(keys)[0]
