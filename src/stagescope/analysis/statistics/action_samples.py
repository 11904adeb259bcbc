"""Samples of action durations, one per training step: the basis for comparing ranks and stages.

A class of actions has one stage, kind and pairing: a forward that shares its time with a backward is not comparable
with one that has the rank to itself. Each sample is the mean over the micro-batches of one class in one step, without
actions that took far longer than the rest (usual_costs.py): a mean of all that count is more certain than their median.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.idle.usual_costs import find_usual_costs
from stagescope.analysis.statistics.group_quantiles import GroupedValues
from stagescope.analysis.statistics.timed_actions import time_actions
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import chosen_rows, kept_if_few
from stagescope.model.lazy import TableParts
from stagescope.model.row_numbers import number_rows
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST_SAMPLES = 4
"""With fewer samples than this nothing is decided."""

WANTED_SAMPLES = 8
FEWEST_ACTIONS_PER_SAMPLE = 4
FAST_QUANTILE = 0.2
"""The fast end of a rank's actions: a slow device is slow there as well, a disturbed one is not."""

MOST_SAMPLES = 40_000_000
"""Rows of a table of samples that are compared; each takes about 25 bytes."""

CLASS = ["rank", "stage", "kind", "is_pair"]
SAMPLE_COLUMNS = [*CLASS, "sample", "fast_ns", "spread_ns", "action_count", "total_ns", "usual_ns"]


@dataclass(frozen=True)
class Sampling:
    """How a run is divided into samples: steps, or with fewer than 4 steps, `parts` parts per step.

    `steps` are those with an action. The parts of a step hold 4 or more consecutive micro-batches. If steps and ranks
    are very many, `skipped` are steps that are no samples.
    """

    steps: tuple[int, ...]
    parts: int
    microbatches: int
    skipped: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.steps) * self.parts

    def expression(self) -> pl.Expr:
        """Return an expression for the sample of a row, from 0, by its step and micro-batch."""
        step = pl.col("step").replace_strict(
            list(self.steps), list(range(len(self.steps))), return_dtype=pl.Int32
        )
        if self.parts == 1:
            return step
        part = pl.col("microbatch").fill_null(0) * self.parts // self.microbatches
        return step * self.parts + part.clip(0, self.parts - 1)


def choose_sampling(steps: pl.Series, microbatches: int) -> Sampling:
    """Return how to divide a run with these steps and so many micro-batches per step into samples."""
    numbers = tuple(steps.drop_nulls().unique().sort().to_list())
    parts = 1
    if 0 < len(numbers) < FEWEST_SAMPLES:
        parts = max(1, min(-(-WANTED_SAMPLES // len(numbers)), microbatches // FEWEST_ACTIONS_PER_SAMPLE))
    return Sampling(numbers, parts, max(microbatches, 1))


def choose_compared(steps: pl.Series, rows: int) -> Sampling:
    """Return the steps that are samples, given all steps, and the rows that a table of their samples would have.

    Those of a run of days would not fit into memory: of twice MOST_SAMPLES, every second step is a sample.
    """
    every = tuple(steps.unique().sort().to_list())
    compared = every[:: max(1, -(-rows // MOST_SAMPLES))]
    return Sampling(compared, 1, 1, tuple(sorted(set(every).difference(compared))))


@dataclass(frozen=True)
class ActionSamples:
    """Samples of action durations, and diagnostics for what they leave out.

    `parts` have the rows of `table`, one range of samples after the other; they may be iterated more than once.
    `every` has the rows of all steps, with the column `step` instead of `sample`, also of those that are no samples.
    """

    parts: Iterable[pl.DataFrame]
    sampling: Sampling
    diagnostics: tuple[Diagnostic, ...]
    every: Iterable[pl.DataFrame] = ()

    @property
    def table(self) -> pl.DataFrame:
        """A row per class of actions and sample, sorted.

        Columns: rank, stage, kind, is_pair, sample, usual_ns (the mean without outliers), fast_ns (the 20th
        percentile), spread_ns (mean absolute deviation from the median), action_count, total_ns.
        """
        return pl.concat(self.parts).sort(*CLASS, "sample")


class StepSamples(NamedTuple):
    """Samples of the actions of some steps, which those of other steps can be added to.

    `table` is that of ActionSamples; unless steps are divided, with the column `step` instead of `sample`: each step is
    a sample. The other numbers count actions that are left out.
    """

    table: pl.DataFrame
    unplaced: int
    lengthless: int


def sample_actions(spans: pl.DataFrame) -> ActionSamples:
    """Return the samples of the actions in `spans`.

    Only actions on the compute lane with a step, a stage and a positive duration count.
    """
    actions = spans.lazy().filter(pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE))
    counts = actions.group_by("step").agg(pl.col("microbatch").drop_nulls().n_unique()).collect()
    sampling = choose_sampling(counts["step"], int(counts["microbatch"].max() or 0))  # type: ignore[arg-type]
    return join_samples([sample_steps(spans, sampling)], sampling)


def sample_steps(spans: pl.DataFrame, sampling: Sampling | None = None) -> StepSamples:
    """Return the samples of the actions in `spans`, step by step; `sampling` is that of the run if it has few steps."""
    actions = time_actions(spans)
    placed = pl.col("step").is_not_null() & pl.col("stage").is_not_null()
    positive = pl.col("duration_ns") > 0
    left_out = actions.select(unplaced=(~placed).sum(), lengthless=(placed & ~positive).sum()).row(
        0, named=True
    )
    actions = actions.filter(placed & positive)
    if sampling is not None and sampling.parts > 1:
        return StepSamples(_samples(actions.with_columns(sample=sampling.expression())), **left_out)
    by_step = _samples(actions.with_columns(sample="step")).rename({"sample": "step"})
    return StepSamples(by_step, **left_out)


def unite_samples(parts: Sequence[StepSamples]) -> StepSamples:
    """Return the samples of some steps, given those of some pipelines each."""
    return StepSamples(
        pl.concat([part.table for part in parts]),
        sum(part.unplaced for part in parts),
        sum(part.lengthless for part in parts),
    )


def join_samples(parts: Sequence[StepSamples], sampling: Sampling | None = None) -> ActionSamples:
    """Return the samples of all steps of a run, given those of its parts, which may be read when they are used.

    `sampling` is that with which they were made.
    """
    every: Iterable[pl.DataFrame] = ()
    if sampling is None or sampling.parts == 1:
        of_parts = [(part["step"].unique(), part.height) for part in _tables(parts)]
        sampling = choose_compared(
            pl.concat([each for each, _ in of_parts]), sum(rows for _, rows in of_parts)
        )
        every = _tables(parts)
    # Sorting them takes long, and comparisons of ranks look at them a dozen times.
    samples = kept_if_few(TableParts(parts, partial(_of_part, sampling)))
    diagnostics = (
        *_skipped(sampling),
        *_excluded(sum(part.unplaced for part in parts), "have no step or stage", "actions.unplaced"),
        *_excluded(sum(part.lengthless for part in parts), "have no duration", "actions.zero_length"),
    )
    return ActionSamples(samples, sampling, diagnostics, every)


def _tables(parts: Sequence[StepSamples]) -> Iterable[pl.DataFrame]:
    return TableParts(parts, lambda part: part.table)


def _of_part(sampling: Sampling, part: StepSamples) -> pl.DataFrame:
    """Return the samples of some steps, sorted."""
    rows = part.table
    if sampling.parts == 1:
        compared = chosen_rows(rows, pl.col("step").is_in(list(sampling.steps)))
        rows = compared.with_columns(sample=sampling.expression())
    return rows.select(SAMPLE_COLUMNS).sort(*CLASS, "sample")


def _samples(actions: pl.DataFrame) -> pl.DataFrame:
    """Return the samples of actions whose column `sample` states which one they belong to."""
    key = actions.select(*CLASS, "sample")
    number, first = number_rows(key)
    duration_ns = actions["duration_ns"].to_numpy()
    total_ns = np.zeros(len(first), dtype=np.int64)
    np.add.at(total_ns, number, duration_ns)
    duration_ns = duration_ns.astype(np.float64)
    usual = find_usual_costs(duration_ns, number, len(first))
    grouped = GroupedValues(duration_ns, number, len(first))
    deviation_ns = np.abs(duration_ns - grouped.linear(0.5)[number])
    return key[first].with_columns(
        fast_ns=pl.Series(grouped.linear(FAST_QUANTILE), dtype=pl.Float64),
        spread_ns=pl.Series(
            np.bincount(number, deviation_ns, len(first)) / np.maximum(grouped.count, 1), dtype=pl.Float64
        ),
        action_count=pl.Series(grouped.count, dtype=pl.UInt32),
        total_ns=pl.Series(total_ns),
        usual_ns=pl.Series(usual.mean_ns, dtype=pl.Float64),
    )


def _skipped(sampling: Sampling) -> list[Diagnostic]:
    if not sampling.skipped:
        return []
    compared, every = len(sampling.steps), len(sampling.steps) + len(sampling.skipped)
    message = f"ranks, stages and links were compared in {compared:,} of {every:,} steps, evenly over the run"
    return [Diagnostic("info", message, code="samples.skipped")]


def _excluded(count: int, why: str, code: str) -> list[Diagnostic]:
    if not count:
        return []
    message = f"forward or backward actions {why}; excluded from statistics"
    return [Diagnostic("info", message, count=count, code=code)]
