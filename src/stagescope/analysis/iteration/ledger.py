"""The iteration ledger: the iteration time of every rank as parts that sum to it to the nanosecond.

    iteration = before its window + window of its pipeline + until the last pipeline has ended + until the next step

The window is divided as in the idle ledger (idle/ledger.py). Outside of it, time in which the rank did something that
was recorded has the name of that activity. Time in which it did nothing is a wait for others:

* until the last pipeline has ended its window: data-parallel wait. It begins at the end of the window and not at the
  recorded reduction, because Megatron-LM synchronizes replicas before the reduction that it times. A reduction that
  runs meanwhile cannot end before the last replica joins it, so it counts as that wait too.
* before and after that: the activity of the other ranks at that moment. Other work counts only if the rank that begins
  the next step of the pipeline does it: all its ranks wait for the first action of that one, and for no one else.
  Without any activity, the time is unattributed.

Where ranks met at recorded collectives after the last window, what counts until the last of them is what the rank did
that came last (iteration/between_steps.py). After that, the slowest rank is waited for, whatever the others already do:
while any rank reduces its gradients, the optimizer step of another one does not make the iteration longer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.activities import (
    ACTIVITIES,
    LOADING,
    OPTIMIZER,
    OTHER,
    REDUCTION,
    covered_with_awaited,
    without_reductions,
)
from stagescope.model.coverage import covered_ns
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.causes import CAUSE_COLUMNS, CAUSES, MAY_BE_UNRECORDED

if TYPE_CHECKING:
    from stagescope.analysis.iteration.activities import ActivityUnions
    from stagescope.analysis.iteration.between_steps import BetweenSteps

DENOMINATOR = (
    "iteration: first action of a step to the first action of the next step over all ranks, or to the last recorded "
    "span where the next step was not recorded"
)
WAIT, UNATTRIBUTED = "data_parallel_wait_ns", "unattributed_ns"
OUTSIDE = (*(f"{name}_ns" for name in ACTIVITIES), WAIT, UNATTRIBUTED)
"""The columns with time outside the windows; some of them have time inside the windows as well."""
BEFORE = tuple(name for name in OUTSIDE if name != WAIT)
"""Those of the time between the start of an iteration and the window of a pipeline."""
WAITED_FOR = (REDUCTION, OPTIMIZER, LOADING)
"""Activities of any other rank that an idle rank waits for, in the order in which they are looked for."""

ITERATIONS = Table(
    "iterations",
    "one rank in one iteration; busy_ns and all causes sum to iteration_ns",
    ("step", "rank"),
    (
        Column("step", pl.Int32, "", "Training step; of several, the first one."),
        Column(
            "steps",
            pl.UInt32,
            "",
            "Steps of the schedule in the iteration: more than 1 if gradients are accumulated.",
        ),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("pipeline", pl.Int32, "", "Smallest rank of its pipeline."),
        Column(
            "is_last", pl.Boolean, "", "Whether its pipeline ended last: the one that set the iteration time."
        ),
        Column(
            "is_whole",
            pl.Boolean,
            "",
            "Whether all its steps and the next one were recorded; otherwise the end is unknown.",
        ),
        Column("start_ns", pl.Int64, "ns", "Start of the iteration; see ITERATION_STEPS."),
        Column("end_ns", pl.Int64, "ns", "End of the iteration."),
        Column("iteration_ns", pl.Int64, "ns", "end_ns - start_ns: the denominator of all fractions."),
        Column(
            "window_ns", pl.Int64, "ns", "Windows of its pipeline: busy_ns and the causes inside of them."
        ),
        Column("busy_ns", pl.Int64, "ns", "Compute inside the window."),
        *(
            Column(cause.column, pl.Int64, "ns", cause.meaning, nullable=cause.column in MAY_BE_UNRECORDED)
            for cause in CAUSES
        ),
    ),
)


class IterationLedger(NamedTuple):
    """`table` is the table ITERATIONS, and `pauses` when nothing was recorded before the windows of a pipeline began.

    Pauses have a row per step, pipeline and the step that begins then (begins), which is `step` itself or the next one,
    and their sum over the ranks (pause_ns). What is before the last collective between two steps is none.
    """

    table: pl.DataFrame
    pauses: pl.DataFrame


def measure_before_windows(
    bubbles: pl.DataFrame, steps: pl.DataFrame, unions: ActivityUnions, turns: pl.DataFrame
) -> pl.DataFrame:
    """Return the parts of the time before each window: step, rank, pipeline, begins and BEFORE, by step and rank.

    The rank `begins` is the one with the first action of the window. `bubbles` is what step_bubbles returns, `steps` is
    the table ITERATION_STEPS, `unions` are those of BetweenSteps, `turns` is from find_turns.
    """
    rows = bubbles.join(steps.select("step", "start_ns"), on="step").sort("step", "rank")
    first = (
        turns.join(rows.select("rank", "pipeline").unique(), on="rank")
        .sort("began_ns", "rank")
        .group_by("step", "pipeline")
        .agg(begins=pl.first("rank"))
    )
    rows = rows.join(first, on=["step", "pipeline"], how="left", maintain_order="left")
    return rows.select("step", "rank", "pipeline", "begins", **_before(rows, unions))


def find_late_starts(before: pl.DataFrame) -> pl.DataFrame:
    """Return why each pipeline began later than its iteration, as means over its ranks: step, pipeline and BEFORE.

    `before` is from measure_before_windows.
    """
    return before.group_by("step", "pipeline").agg(pl.col(BEFORE).mean()).sort("step", "pipeline")


def build_iteration_ledger(
    bubbles: pl.DataFrame,
    steps: pl.DataFrame,
    idle_ledger: pl.DataFrame,
    between: BetweenSteps,
    before: pl.DataFrame,
) -> IterationLedger:
    """Return the ledger for `steps`, the table ITERATION_STEPS, with a row per rank and step.

    `bubbles` is what step_bubbles returns, `idle_ledger` is the table IDLE_LEDGER, `between` is from
    find_between_steps, `before` from measure_before_windows. Unattributed time outside of the window is negative if the
    next step begins before all pipelines have ended this one.
    """
    rows = _with_next(_rows(bubbles, steps, idle_ledger), before)
    unions = between.unions
    after = _after(rows, unions, between)
    outside = [
        {name: before[name] for name in BEFORE},
        _waiting(rows, unions),
        after,
        _met(rows, between),
    ]
    totals = {column: sum(part[column] for part in outside if column in part) for column in OUTSIDE}
    inside = rows.select(CAUSE_COLUMNS)
    totals |= {name: totals[name] + inside[name] for name in OUTSIDE if name in inside.columns}
    table = (
        rows.with_columns(inside.get_columns())
        .with_columns(**totals)
        .select(pl.col(name).cast(dtype) for name, dtype in ITERATIONS.schema.items())
    )
    return IterationLedger(table, _pauses(rows, before[UNATTRIBUTED], after[UNATTRIBUTED]))


def _pauses(rows: pl.DataFrame, before_ns: pl.Series, after_ns: pl.Series) -> pl.DataFrame:
    """Return the pauses of an IterationLedger; `before_ns` and `after_ns` are unattributed outside of the windows.

    A step that follows another one has a row, even without a pause.
    """
    keys = rows.select("step", "pipeline", "is_whole")
    first = keys.with_columns(begins="step", pause_ns=before_ns).filter(pl.col("pause_ns") > 0)
    following = keys.with_columns(begins=pl.col("step") + 1, pause_ns=after_ns.clip(0)).filter("is_whole")
    every = pl.concat([first, following]).group_by("step", "pipeline", "begins").agg(pl.sum("pause_ns"))
    return every.sort("step", "pipeline", "begins")


def _rows(bubbles: pl.DataFrame, steps: pl.DataFrame, idle_ledger: pl.DataFrame) -> pl.DataFrame:
    """Return the windows of all ranks in these steps, with the causes of their idle time."""
    attributed = list(CAUSE_COLUMNS[:-1])
    rows = (
        bubbles.join(steps, on="step")
        .join(idle_ledger.select("step", "rank", *attributed), on=["step", "rank"], how="left")
        .with_columns(pl.col(attributed).fill_null(0))
        .sort("step", "rank")
    )
    return rows.with_columns(
        (pl.col("idle_ns") - pl.sum_horizontal(attributed)).alias(UNATTRIBUTED),
        is_last=pl.col("pipeline") == pl.col("last_pipeline"),
        iteration_ns=pl.col("end_ns") - pl.col("start_ns"),
        steps=pl.lit(1),
    )


def _with_next(rows: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Return rows with the rank that begins the next step of their pipeline (begins_next); null if none follows."""
    following = before.select(pl.col("step") - 1, "pipeline", begins_next="begins").unique(
        ["step", "pipeline"]
    )
    known = rows.join(following, on=["step", "pipeline"], how="left", maintain_order="left")
    return known.with_columns(pl.when("is_whole").then("begins_next").alias("begins_next"))


def _after(rows: pl.DataFrame, unions: ActivityUnions, between: BetweenSteps) -> dict[str, pl.Series]:
    """Return the parts of the interval from the end of the last window to the next step, after the last collective.

    That is the last one on the path from the one to the other; _met returns the parts until then.
    """
    settled = rows.select("step", "rank", "last_end_ns", "end_ns", "begins_next").join(
        between.settled, on="step", how="left", maintain_order="left"
    )
    since_ns = pl.max_horizontal("last_end_ns", "settled_ns")
    interval = _interval(settled.with_columns(since_ns=since_ns), "since_ns", "end_ns")
    length_ns = interval["window_end_ns"] - interval["window_start_ns"]
    parts, known = {}, pl.Series("covered_ns", [0] * rows.height, dtype=pl.Int64)
    for count, name in enumerate(WAITED_FOR):
        reached = covered_ns(interval, unions.of_all(WAITED_FOR[: count + 1], rows["rank"]))
        parts[f"{name}_ns"] = reached - known
        known = reached
    recorded = unions.with_others(WAITED_FOR, rows["rank"])
    every = covered_with_awaited(interval, rows["begins_next"], recorded, unions.of_each([OTHER]))
    return {**parts, f"{OTHER}_ns": every - known, UNATTRIBUTED: length_ns - every}


def _met(rows: pl.DataFrame, between: BetweenSteps) -> dict[str, pl.Series]:
    """Return the parts until the last collective between the end of the last window and the next step, of all ranks."""
    parts = {}
    sums = between.parts.group_by("step", "cause").agg(pl.sum("ns"))
    for (cause,), part in sums.group_by("cause"):
        met = rows.select("step").join(part, on="step", how="left", maintain_order="left")
        parts[f"{cause}_ns"] = met["ns"].fill_null(0)
    return parts


def _before(rows: pl.DataFrame, unions: ActivityUnions) -> dict[str, pl.Series]:
    """Return the parts of the interval between the first window and that of the rank."""
    interval = _interval(rows, "start_ns", "window_start_ns")
    length_ns = interval["window_end_ns"] - interval["window_start_ns"]
    own = [covered_ns(interval, united) for united in unions.first_of_each()]
    parts = {
        f"{name}_ns": each - before for name, each, before in zip(ACTIVITIES, own, [0, *own], strict=False)
    }
    known = own[-1]
    for count, name in enumerate(WAITED_FOR):
        reached = covered_ns(interval, unions.with_others(WAITED_FOR[: count + 1], rows["rank"]))
        parts[f"{name}_ns"] += reached - known
        known = reached
    recorded = unions.with_others(WAITED_FOR, rows["rank"])
    every = covered_with_awaited(interval, rows["begins"], recorded, unions.of_each([OTHER]))
    parts[f"{OTHER}_ns"] += every - known
    return {**parts, UNATTRIBUTED: length_ns - every}


def _waiting(rows: pl.DataFrame, unions: ActivityUnions) -> dict[str, pl.Series]:
    """Return the parts of the interval between the end of a window and the end of the last one."""
    interval = _interval(rows, "window_end_ns", "last_end_ns")
    length_ns = interval["window_end_ns"] - interval["window_start_ns"]
    optimizing = covered_ns(interval, unions.of_each([OPTIMIZER]))
    loading = covered_ns(interval, unions.of_each([OPTIMIZER, LOADING]))
    working = covered_ns(interval, without_reductions(unions.named))
    return {
        f"{OPTIMIZER}_ns": optimizing,
        f"{LOADING}_ns": loading - optimizing,
        f"{OTHER}_ns": working - loading,
        WAIT: length_ns - working,
    }


def _interval(rows: pl.DataFrame, start: str, end: str) -> pl.DataFrame:
    """Return an interval per row, as covered_ns expects it. It may end before it starts: then nothing covers it."""
    return rows.select("rank", window_start_ns=pl.col(start), window_end_ns=pl.col(end))
