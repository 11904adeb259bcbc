"""The differences of two runs as a table: estimates with intervals, and which of them are claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.statistics.estimates import (
    Estimates,
    difference,
    discoveries,
    estimate_means,
    some_rows,
)
from stagescope.analysis.statistics.run_series import KEY, SUBJECTS, WHOLE, SubjectType
from stagescope.analysis.statistics.series import find_outliers
from stagescope.analysis.statistics.step_trend import LEAST_OUTLIER_FRACTION
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RUNS = ("first", "second")
RATE = OUTLIER_RATE = 0.05
FEWEST_STEPS = 3
LARGEST_CORRELATION = 0.95


class Least(NamedTuple):
    """The smallest difference worth naming.

    By default 0.5 % of the iteration for the iteration, the window and the parts, 1 % of its own time for the rest.
    """

    step_fraction: float = 0.005
    own_fraction: float = 0.01


DEFAULT_LEAST = Least()

DIFFERENCES = Table(
    "differences",
    "one series that both runs have: the iteration, the window, a part of the iteration, the actions of a stage, a "
    "rank or a link; times are per iteration, or per micro-batch if the runs have different numbers of them, and those "
    "of a link per message",
    ("subject", "difference_ns"),
    (
        Column(
            "subject",
            SubjectType,
            "",
            "What is compared: `step` is the longest window of a pipeline, the parts sum to `iteration`.",
        ),
        Column("part", pl.String, "", "Part of the iteration of the last pipeline.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of the actions.", nullable=True),
        Column("kind", pl.String, "", "Kind of the actions; direction of a link.", nullable=True),
        Column("rank", pl.Int32, "", "The rank; of a link, the sender.", nullable=True),
        Column("peer", pl.Int32, "", "The receiver of a link.", nullable=True),
        Column("before_ns", pl.Float64, "ns", "Mean of the first run."),
        Column("after_ns", pl.Float64, "ns", "Mean of the second run."),
        Column("difference_ns", pl.Float64, "ns", "Second minus first."),
        Column("low_ns", pl.Float64, "ns", "Lower end of its 95 % CI; null: too few steps.", nullable=True),
        Column("high_ns", pl.Float64, "ns", "Upper end.", nullable=True),
        Column("steps_before", pl.Int64, "", "Steps of the first run: its n."),
        Column("steps_after", pl.Int64, "", "Steps of the second run: its n."),
        Column(
            "p_value",
            pl.Float64,
            "",
            "Probability of such a difference if the true one were not worth naming.",
        ),
        Column("is_claimed", pl.Boolean, "", "Whether it is significant and worth naming."),
    ),
)

LONG_STEPS = Table(
    "long steps",
    "one outlier: a step whose iteration was longer than the others of its run, as in OUTLIER_STEPS",
    (),
    (
        Column("run", pl.Enum(list(RUNS)), "", "The run."),
        Column("step", pl.Int32, "", "The step."),
        Column("iteration_ns", pl.Float64, "ns", "Its iteration."),
        Column("excess_fraction", pl.Float64, "", "How much longer it was than the median of its run."),
    ),
)


def find_long_steps(series: tuple[pl.DataFrame, pl.DataFrame]) -> pl.DataFrame:
    """Return the table LONG_STEPS of the series of both runs."""
    frames = []
    for name, every in zip(RUNS, series, strict=True):
        of_run = every.filter(pl.col("subject") == SUBJECTS[0]).sort("step")
        values_ns = of_run["value_ns"].to_numpy()
        if not len(values_ns) or values_ns.min() <= 0:
            continue
        ratio = np.log(values_ns / np.median(values_ns))
        is_long = find_outliers(ratio, OUTLIER_RATE) & (np.expm1(ratio) >= LEAST_OUTLIER_FRACTION)
        rows = of_run.with_columns(
            run=pl.lit(name), iteration_ns="value_ns", excess_fraction=pl.Series(np.expm1(ratio))
        ).filter(pl.Series(is_long))
        frames.append(rows.select(pl.col(name).cast(dtype) for name, dtype in LONG_STEPS.schema.items()))
    return pl.concat([LONG_STEPS.empty(), *frames])


def without_long_steps(
    series: tuple[pl.DataFrame, pl.DataFrame], long_steps: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the series of both runs without the steps in the table LONG_STEPS."""
    before, after = (
        each.filter(~pl.col("step").is_in(long_steps.filter(run=name)["step"].implode()))
        for name, each in zip(RUNS, series, strict=True)
    )
    return before, after


def find_differences(before: pl.DataFrame, after: pl.DataFrame, least: Least) -> pl.DataFrame:
    """Return the table DIFFERENCES of the series that both runs have."""
    key = list(KEY)
    both = (
        before.select(key)
        .unique(maintain_order=True)
        .join(after.select(key).unique(), on=key, how="semi", nulls_equal=True, maintain_order="left")
    )
    if both.is_empty():
        return DIFFERENCES.empty()
    both = both.with_row_index("series")
    values = ["series", "step", "value_ns", "clock_error_ns"]
    runs = [run.join(both, on=key, nulls_equal=True).select(values) for run in (before, after)]
    is_whole = both["subject"].is_in(WHOLE).to_numpy()
    one, other = (_estimates(run, both["subject"]) for run in runs)
    clock_error_ns = _clock_error_ns(runs[0]) + _clock_error_ns(runs[1])
    change = difference(one, other)
    low, high = change.intervals()
    p_values = _p_values(change, _least_ns(both["subject"], is_whole, one.value, least) + clock_error_ns)
    rows = both.with_columns(
        before_ns=pl.Series(one.value),
        after_ns=pl.Series(other.value),
        difference_ns=pl.Series(change.value),
        low_ns=pl.Series(low, nan_to_null=True),
        high_ns=pl.Series(high, nan_to_null=True),
        steps_before=pl.Series(one.count),
        steps_after=pl.Series(other.count),
        p_value=pl.Series(p_values),
        is_claimed=pl.Series(discoveries(p_values, RATE)),
    )
    ordered = rows.sort(pl.col("subject").to_physical(), -pl.col("difference_ns").abs(), maintain_order=True)
    return ordered.select(pl.col(name).cast(dtype) for name, dtype in DIFFERENCES.schema.items())


def _estimates(series: pl.DataFrame, subjects: pl.Series) -> Estimates:
    """Return the mean of every series over its steps, its error widened if steps resemble their neighbors.

    One kind of subject is looked at after the other: there are few series of all steps, and many of some steps.
    """
    placed = series.sort("series", "step").with_columns(place=pl.int_range(pl.len()).over("series"))
    groups = [subjects.eq(subject).arg_true().to_numpy() for subject in subjects.unique().to_list()]
    found = [_estimate_group(_values_of(placed, group), subjects[int(group[0])]) for group in groups]
    order = np.argsort(np.concatenate(groups))
    columns = ((each.value, each.error, each.degrees, each.count) for each in found)
    return Estimates(*(np.concatenate(column)[order] for column in zip(*columns, strict=True)))


def _values_of(placed: pl.DataFrame, group: NDArray[np.int64]) -> Floats:
    """Return the values of some series, a row each; NaN where another one of them has more."""
    own = placed.filter(pl.col("series").is_in(group.tolist()))
    values = np.full((len(group), int(own["place"].to_numpy().max()) + 1), np.nan)
    values[np.searchsorted(group, own["series"].to_numpy()), own["place"].to_numpy()] = own[
        "value_ns"
    ].to_numpy()
    return values


def _estimate_group(values: Floats, subject: str) -> Estimates:
    """Return the estimates of the series of one kind of subject.

    Those that are about the whole run are not trimmed, so that the means of the parts sum to the mean of the iteration.
    """
    means = estimate_means(values, trim_fraction=0.0) if subject in WHOLE else estimate_means(values)
    # Consecutive steps resemble each other (thermal state, data order), so n independent samples are fewer than n.
    widened = _fewer_samples(values)
    return Estimates(
        means.value,
        means.error * np.sqrt(widened),
        np.where(means.degrees > 0, np.maximum((means.degrees + 1) / widened - 1, 1.0), 0.0),
        means.count,
    )


def _fewer_samples(values: Floats) -> Floats:
    """Return how many times fewer independent samples every series is worth because its steps resemble each other.

    First-order autocorrelation: that of the series, or the mean over the series of its group if that is larger, because
    a single short series hardly shows it. Its estimate from n values is too small by (1 + 3 r) / n (Marriott and Pope
    1954).
    """
    own = np.concatenate([_autocorrelations(rows) for rows in some_rows(values)])
    count = np.isfinite(values).sum(axis=1)
    own = np.where(np.isfinite(own) & (count > FEWEST_STEPS), own, 0.0)
    found = np.maximum(own, own.mean())
    corrected = np.minimum(found + (1 + 3 * found) / np.maximum(count, 1), LARGEST_CORRELATION)
    widened: Floats = np.where(found > 0, (1 + corrected) / (1 - corrected), 1.0)
    return widened


def _autocorrelations(values: Floats) -> Floats:
    centered = values - np.nanmean(values, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.nansum(centered[:, 1:] * centered[:, :-1], axis=1) / np.nansum(centered**2, axis=1)
    return found


def _clock_error_ns(series: pl.DataFrame) -> Floats:
    """Return per series how much of its mean may be clock error."""
    means = series.group_by("series").agg(pl.col("clock_error_ns").mean()).sort("series")
    clock_error_ns: Floats = means["clock_error_ns"].to_numpy()
    return clock_error_ns


def _least_ns(subjects: pl.Series, is_whole: NDArray[np.bool_], before_ns: Floats, least: Least) -> Floats:
    """Return the smallest difference that is worth naming for every row."""
    whole_ns = float(before_ns[subjects.eq(SUBJECTS[0]).to_numpy()].sum())
    found: Floats = np.where(is_whole, least.step_fraction * whole_ns, least.own_fraction * np.abs(before_ns))
    return found


def _p_values(change: Estimates, least_ns: Floats) -> Floats:
    """Return the two-sided p-values of "the difference is no larger than `least_ns`"."""
    mirrored = Estimates(-change.value, change.error, change.degrees, change.count)
    sides = np.minimum(change.p_above(least_ns), mirrored.p_above(least_ns))
    both: Floats = np.minimum(2 * sides, 1.0)
    return both
