"""Two runs compared: what became slower or faster, where, and whether that exceeds the variation between steps.

Step 7 of one run has nothing in common with step 7 of the other, so each run is a set of steps, and a difference is one
of means. Its interval (Welch) comes from the variation between the steps of each run; steps that resemble their
neighbors widen it. What all steps of one run have in common, such as the machine, no interval can cover: compare
several runs of the same configuration to see how large that is.

Claimed differences exceed a minimum that is worth naming, and at most 5 % of them are expected to be false.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.actions import find_actions
from stagescope.analysis.idle.ledger import Ledger, build_ledger
from stagescope.analysis.report import build_report
from stagescope.analysis.statistics.estimates import Estimates, difference, discoveries, estimate_means
from stagescope.analysis.statistics.run_series import (
    ACTION,
    KEY,
    SUBJECTS,
    SubjectType,
    action_series,
    find_action_costs,
    link_series,
    rank_series,
    step_series,
)
from stagescope.analysis.statistics.series import inflation
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.model import Timeline

    Floats = NDArray[np.float64]

RUNS = ("first", "second")
RATE = 0.05


class Least(NamedTuple):
    """The smallest difference worth naming.

    By default 0.5 % of the step for the step and its parts, 1 % of its own time for the rest.
    """

    step_fraction: float = 0.005
    own_fraction: float = 0.01


DEFAULT_LEAST = Least()

DIFFERENCES = Table(
    "differences",
    "one series that both runs have: the step, a part of it, the actions of a stage, a rank or a link",
    ("subject", "difference_ns"),
    (
        Column("subject", SubjectType, "", "What is compared."),
        Column("part", pl.String, "", "Part of the ledger.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of the actions.", nullable=True),
        Column("kind", pl.String, "", "Kind of the actions; direction of a link.", nullable=True),
        Column("rank", pl.Int32, "", "The rank; of a link, the sender.", nullable=True),
        Column("peer", pl.Int32, "", "The receiver of a link.", nullable=True),
        Column("before_ns", pl.Float64, "ns", "Mean per step of the first run."),
        Column("after_ns", pl.Float64, "ns", "Mean per step of the second run."),
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


@dataclass(frozen=True)
class Comparison:
    """The table DIFFERENCES, largest first within each subject, and diagnostics about what could not be compared."""

    table: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]

    def __repr__(self) -> str:
        claimed = int(self.table["is_claimed"].sum())
        return f"Comparison({self.table.height} differences, {claimed} of them claimed)"


def compare_totals(before: Timeline, after: Timeline) -> Comparison:
    """Return what compare_runs does for the steps that are in the totals of each run's report.

    A diagnostic lists the steps that are left out.
    """
    diagnostics = []
    runs = []
    for name, run in zip(RUNS, (before, after), strict=True):
        left_out = build_report(run).steps.filter(~pl.col("in_totals"))["step"].to_list()
        if left_out:
            message = f"{name} run: step {compact_ranges(left_out)} is not in the totals; left out"
            diagnostics.append(Diagnostic("info", message, code="comparison.excluded_steps"))
        kept = (~pl.col("step").is_in(left_out)).fill_null(value=True)
        runs.append(run.with_spans(run.spans.filter(kept)))
    found = compare_runs(runs[0], runs[1])
    return replace(found, diagnostics=(*diagnostics, *found.diagnostics))


def compare_runs(
    before: Timeline,
    after: Timeline,
    least: Least = DEFAULT_LEAST,
) -> Comparison:
    """Return the differences of `after` from `before`; both timelines hold only the steps to compare.

    The step and the parts of its ledger (idle/ledger.py) are means over the pipelines. Actions are matched by stage,
    kind and micro-batch, and only if both runs have the same number of stages; ranks and links if they hold the same
    stages. What cannot be matched is left out with a diagnostic. Never raises.
    """
    runs = (before, after)
    actions = (find_action_costs(before), find_action_costs(after))
    ledgers = [build_ledger(find_actions(run), spans=run.spans) for run in runs]
    series = [[step_series(ledger.steps)] for ledger in ledgers]
    diagnostics = [*_unlike(runs, actions), *_of_each(ledgers)]
    if _stage_count(actions[0]) == _stage_count(actions[1]):
        shared = (
            actions[0].select(ACTION).unique().join(actions[1].select(ACTION).unique(), on=ACTION, how="semi")
        )
        placed = _ranks_with_same_stages(actions)
        for one, run, own in zip(series, runs, actions, strict=True):
            one.append(action_series(own, shared))
            one.append(rank_series(own.filter(pl.col("rank").is_in(placed.implode())), shared))
            links = link_series(run)
            one.append(
                links.filter(pl.col("rank").is_in(placed.implode()) & pl.col("peer").is_in(placed.implode()))
            )
    return Comparison(_differences(pl.concat(series[0]), pl.concat(series[1]), least), tuple(diagnostics))


def _differences(before: pl.DataFrame, after: pl.DataFrame, least: Least) -> pl.DataFrame:
    """Return the table DIFFERENCES of the series that both runs have."""
    key = list(KEY)
    both = (
        before.select(key)
        .unique(maintain_order=True)
        .join(after.select(key).unique(), on=key, how="semi", nulls_equal=True)
    )
    if both.is_empty():
        return DIFFERENCES.empty()
    both = both.with_row_index("series")
    runs = [run.join(both, on=key, nulls_equal=True) for run in (before, after)]
    one, other = (_estimates(run, both.height) for run in runs)
    clock_error_ns = _clock_error_ns(runs[0]) + _clock_error_ns(runs[1])
    change = difference(one, other)
    low, high = change.intervals()
    p_values = _p_values(change, _least_ns(both["subject"], one.value, least) + clock_error_ns)
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


def _estimates(series: pl.DataFrame, count: int) -> Estimates:
    """Return the mean of every series over its steps, its error widened if steps resemble their neighbors.

    Nothing is trimmed, so that the means of the parts sum to the mean of the step.
    """
    placed = series.sort("series", "step").with_columns(place=pl.int_range(pl.len()).over("series"))
    most = int(placed["place"].to_numpy().max()) + 1
    values = np.full((count, most), np.nan)
    values[placed["series"].to_numpy(), placed["place"].to_numpy()] = placed["value_ns"].to_numpy()
    plain = estimate_means(values, trim_fraction=0.0)
    # Consecutive steps resemble each other (thermal state, data order), so n independent samples are fewer than n.
    widths = np.array([np.sqrt(inflation(row[np.isfinite(row)])) for row in values])
    return Estimates(plain.value, plain.error * widths, plain.degrees, plain.count)


def _clock_error_ns(series: pl.DataFrame) -> Floats:
    """Return per series how much of its mean may be clock error."""
    means = series.group_by("series").agg(pl.col("clock_error_ns").mean()).sort("series")
    clock_error_ns: Floats = means["clock_error_ns"].to_numpy()
    return clock_error_ns


def _least_ns(subjects: pl.Series, before_ns: Floats, least: Least) -> Floats:
    """Return the smallest difference that is worth naming for every row."""
    is_whole = subjects.is_in(SUBJECTS[:2]).to_numpy()
    step_ns = float(before_ns[subjects.eq(SUBJECTS[0]).to_numpy()].sum())
    found: Floats = np.where(is_whole, least.step_fraction * step_ns, least.own_fraction * np.abs(before_ns))
    return found


def _p_values(change: Estimates, least_ns: Floats) -> Floats:
    """Return the two-sided p-values of "the difference is no larger than `least_ns`"."""
    mirrored = Estimates(-change.value, change.error, change.degrees, change.count)
    sides = np.minimum(change.p_above(least_ns), mirrored.p_above(least_ns))
    both: Floats = np.minimum(2 * sides, 1.0)
    return both


def _stage_count(actions: pl.DataFrame) -> int:
    return actions["stage"].n_unique()


def _ranks_with_same_stages(actions: tuple[pl.DataFrame, pl.DataFrame]) -> pl.Series:
    """Return the ranks that hold the same stages in both runs."""
    held = [
        one.select("rank", "stage")
        .unique()
        .sort("rank", "stage")
        .group_by("rank", maintain_order=True)
        .agg("stage")
        for one in actions
    ]
    return held[0].join(held[1], on=["rank", "stage"], how="semi")["rank"]


def _unlike(runs: tuple[Timeline, Timeline], actions: tuple[pl.DataFrame, pl.DataFrame]) -> list[Diagnostic]:
    """Return diagnostics about what differs between the runs, with the consequence."""
    found = []
    schedules = [", ".join(run.ranks["schedule"].drop_nulls().unique().sort()) for run in runs]
    if schedules[0] != schedules[1]:
        found.append(
            _differs(f"schedules differ: {schedules[0] or 'unknown'} and {schedules[1] or 'unknown'}")
        )
    stages, microbatches, ranks, kinds = (
        [set(one[name].unique().to_list()) for one in actions]
        for name in ("stage", "microbatch", "rank", "kind")
    )
    if len(stages[0]) != len(stages[1]):
        found.append(
            _differs(
                f"{len(stages[0])} and {len(stages[1])} stages: actions, ranks and links are not compared"
            )
        )
        return found
    if microbatches[0] != microbatches[1]:
        which = f"micro-batches {compact_ranges(microbatches[0])} and {compact_ranges(microbatches[1])}"
        found.append(
            _differs(f"{which}: only shared micro-batches are compared; the steps do different work")
        )
    if ranks[0] != ranks[1]:
        found.append(
            _differs(
                f"ranks {compact_ranges(ranks[0])} and {compact_ranges(ranks[1])}: only shared ranks are compared"
            )
        )
    lone = sorted(kinds[0] ^ kinds[1])
    return [
        *found,
        *(_differs(f"only one of the runs has {kind} actions; they are not compared") for kind in lone),
    ]


def _of_each(ledgers: list[Ledger]) -> list[Diagnostic]:
    """Return the diagnostics of both ledgers."""
    return [
        replace(one, message=f"{run} run: {one.message}")
        for run, ledger in zip(RUNS, ledgers, strict=True)
        for one in ledger.diagnostics
    ]


def _differs(message: str) -> Diagnostic:
    return Diagnostic("info", message, code="comparison.differs")
