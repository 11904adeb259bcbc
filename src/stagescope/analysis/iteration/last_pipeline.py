"""The pipeline that ends last in an iteration: which one it is, and what its time consists of.

All others wait for it, so only what it loses makes the iteration longer. The average over all ranks shows their waiting
instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.idle.savings import offset_savings
from stagescope.model.lazy import parts_of
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.causes import BY_COLUMN, CAUSE_COLUMNS, CAUSES
from stagescope.vocabulary.ratios import percent_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.intermediates import Intermediates

FEWEST_PIPELINES = 2
USUAL_FRACTION = 0.5
"""A pipeline is named as the last one if it was in at least this many of the iterations."""

MOST_PARTS = 4
LEAST_PART_FRACTION = 0.005
LEAST_RANGE_FRACTION = 0.01
BEYOND_WINDOWS = ("gradient_reduction", "data_parallel_wait", "data_loading", "optimizer", "other_work")
"""Causes of the window that are in the rest of the iteration, too."""
IDEAL, REDUCTION = "ideal_work", "gradient_reduction_ns"


LOSSES = Table(
    "losses",
    "one part of the iteration of the last pipeline; the parts sum to the iteration",
    (),
    (
        Column("part", pl.String, "", "`ideal_work` or the name of a cause."),
        Column("ns", pl.Float64, "ns", "Mean per iteration; null: not recorded.", nullable=True),
        Column("fraction", pl.Float64, "", "Of the iteration; null: not recorded.", nullable=True),
        Column(
            "low_ns",
            pl.Float64,
            "ns",
            "Least of ns and what the part is if its cause is removed before or after all others.",
            nullable=True,
        ),
        Column("high_ns", pl.Float64, "ns", "The most of these.", nullable=True),
    ),
)


STEP_LOSSES = Table(
    "step_losses",
    "one step of the last pipeline, whose iteration is divided among ideal work and causes, which may be negative",
    ("step",),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("iteration_ns", pl.Float64, "ns", "The iteration; mean over the ranks."),
        Column(
            f"{IDEAL}_ns", pl.Float64, "ns", "Mean work of its ranks, at the costs of T1 (idle/ledger.py)."
        ),
        *(Column(cause.column, pl.Float64, "ns", cause.meaning) for cause in CAUSES),
    ),
)


def of_last_pipelines(iterations: pl.DataFrame, parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the rows of a table of a Ledger that measure_losses looks at, sorted, given its parts.

    `iterations` is the table ITERATIONS, or its rows of the last pipelines.
    """
    keys = ["pipeline", "step"]
    last = iterations.filter("is_last").select(keys).unique()
    return pl.concat([rows.join(last, on=keys, how="semi") for rows in parts]).sort(keys, maintain_order=True)


def measure_losses(
    iterations: pl.DataFrame,
    ledger: pl.DataFrame,
    orders: pl.DataFrame | None = None,
    chained: pl.DataFrame | None = None,
    steps: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return the table LOSSES: what the iterations of the last pipelines consist of.

    `iterations` is the table ITERATIONS, or its rows of the last pipelines, `ledger` the losses of a Ledger: slow ranks
    and stages have what the step would have saved without them (idle/losses.py). `orders` is the table REMOVAL_ORDERS;
    without it, and for causes below 1 %, `low_ns` and `high_ns` are `ns`. A straggler is the work that a rank has more
    than its replicas, and not the idle time of the others. No part is negative (idle/savings.py). Empty for actions
    without a ledger. `chained` is from measure_chained_losses: where steps overlap, a cause costs an iteration another
    time than a window. `steps` is the table LEDGER, with which `iterations` was made.
    """
    rows = losses_by_step(iterations, ledger, chained, steps)
    if rows.is_empty():
        return LOSSES.empty()
    means = rows.drop("step").mean().row(0, named=True)
    if not means[
        "iteration_ns"
    ]:  # all times are equal, as in seconds without decimals: no part has a share of nothing
        return LOSSES.empty()
    if chained is not None:
        means = _of_all_steps(means, iterations)
    whole_ns = means.pop("iteration_ns")
    ideal_ns = {f"{IDEAL}_ns": means.pop(f"{IDEAL}_ns")}
    signed = {name.removesuffix("_ns"): part_ns for name, part_ns in means.items()}
    means = ideal_ns | {f"{name}_ns": part_ns for name, part_ns in offset_savings(signed).items()}
    others = {} if orders is None or chained is not None else _in_other_orders(rows, iterations, orders)
    parts = []
    for name, part_ns in means.items():
        part = name.removesuffix("_ns")
        every = (part_ns, *(max(each, 0.0) for each in others.get(part, ())))
        parts.append((part, part_ns, part_ns / whole_ns, min(every), max(every)))
    return pl.DataFrame(parts, schema=LOSSES.schema, orient="row")


def _of_all_steps(means: dict[str, float], iterations: pl.DataFrame) -> dict[str, float]:
    """Return means of the steps that were chained, in proportion to the iterations of all steps.

    Of a large run, only those of its sample are.
    """
    of_steps = iterations.filter("is_last").group_by("step", "pipeline").agg(pl.col("iteration_ns").mean())
    ratio = float(of_steps["iteration_ns"].mean() or 0.0) / means["iteration_ns"]  # type: ignore[arg-type]  # a number
    return {name: mean_ns * ratio for name, mean_ns in means.items()}


def _in_other_orders(
    rows: pl.DataFrame, iterations: pl.DataFrame, orders: pl.DataFrame
) -> dict[str, tuple[float, float]]:
    """Return the mean times in the last pipelines of causes that are removed first, and last.

    In steps without such times, a cause counts as it is in `rows`, from losses_by_step.
    """
    last = iterations.filter("is_last").select("step", "pipeline").unique()
    inside = ~pl.col("cause").cast(pl.String).is_in(BEYOND_WINDOWS)
    known = orders.filter(inside).join(last, on=["step", "pipeline"])
    found = {}
    for (cause,), of_cause in known.partition_by("cause", as_dict=True).items():
        part = rows.select("step", part=f"{cause}_ns").join(of_cause, on="step", how="left")
        sides = part.select(pl.coalesce(name, "part").mean() for name in ("first_ns", "last_ns"))
        found[str(cause)] = sides.row(0)
    return found


def removal_order_text(losses: pl.DataFrame) -> str:
    """Return a sentence about the parts that depend on the order of removal by more than a point; else empty."""
    whole_ns = float(losses["ns"].sum() or 0.0)
    if not whole_ns:
        return ""
    texts = [
        f"{BY_COLUMN[f'{part}_ns'].label} is {100 * low_ns / whole_ns:.0f} to {100 * high_ns / whole_ns:.0f} %"
        for part, low_ns, high_ns in losses.select("part", "low_ns", "high_ns").drop_nulls().iter_rows()
        if high_ns - low_ns > LEAST_RANGE_FRACTION * whole_ns
    ]
    if not texts:
        return ""
    return f"Causes interact: depending on which is removed first, {', '.join(texts)} of the iteration."


def losses_by_step(
    iterations: pl.DataFrame,
    ledger: pl.DataFrame,
    chained: pl.DataFrame | None = None,
    steps: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return what the iteration of the last pipeline consists of in every step: step, iteration_ns and its parts in ns.

    The columns of the parts are ideal_work_ns and those of the causes; they sum to iteration_ns. `iterations` is the
    table ITERATIONS, `ledger` the table LEDGER; steps without a ledger have no row. `chained` replaces its causes.
    `steps` is the table LEDGER that `iterations` was made with, if `ledger` has causes removed in another order.
    """
    last = iterations.filter("is_last")
    # These are the same for all ranks in the window, as none is compute; the iteration has them outside of it, too.
    both = [f"{name}_ns" for name in BEYOND_WINDOWS]
    of_ranks = last.group_by("step", "pipeline").agg(pl.col("iteration_ns", *both).mean())
    attributed = ("ideal_work_ns", *CAUSE_COLUMNS[:-1])
    rest_ns = pl.col("iteration_ns") - pl.sum_horizontal(attributed)
    parts = of_ranks.join(ledger.drop(both), on=["step", "pipeline"])
    if steps is not None:
        parts = _removed_later(parts, ledger, steps)
    if chained is not None:
        bubble_ns = (pl.col("bare_ns") - pl.col("ideal_work_ns")).alias(CAUSE_COLUMNS[0])
        kept = of_ranks.select("step", "iteration_ns")
        ideal = parts.select("step", "ideal_work_ns")
        parts = kept.join(ideal, on="step").join(chained, on="step").with_columns(bubble_ns)
    return parts.sort("step").select("step", "iteration_ns", *attributed, rest_ns.alias(CAUSE_COLUMNS[-1]))


def measure_losses_of_steps(known: Intermediates) -> pl.DataFrame:
    """Return the table STEP_LOSSES of all steps of a run, given its intermediate results."""
    last = pl.concat([rows.filter("is_last") for rows in parts_of(known, "iterations")])
    losses, steps = (of_last_pipelines(last, parts_of(known.ledger, name)) for name in ("losses", "steps"))
    found = losses_by_step(last, losses, known.chained_losses, steps)
    return found.select(pl.col(name).cast(dtype) for name, dtype in STEP_LOSSES.schema.items())


def _removed_later(parts: pl.DataFrame, ledger: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return parts with the reductions inside of the window as in `ledger`; they are removed after slow ranks there."""
    name, keys = REDUCTION, ["step", "pipeline"]
    inside = ledger.select(*keys, later_ns=name).join(steps.select(*keys, sooner_ns=name), on=keys)
    joined = parts.join(inside, on=keys, how="left")
    return joined.with_columns(pl.col(name) + pl.col("later_ns") - pl.col("sooner_ns")).drop(
        "later_ns", "sooner_ns"
    )


def last_pipelines(explanation: Explanation) -> list[int]:
    """Return the pipelines that were last in at least one iteration."""
    return _times_last(explanation)["pipeline"].to_list()


def _times_last(explanation: Explanation) -> pl.DataFrame:
    """Return the pipelines that were last in at least one iteration, sorted, and in how many steps (times)."""
    last = [
        rows.filter("is_last").select("pipeline", "step").unique()
        for rows in parts_of(explanation, "iterations")
    ]
    return pl.concat(last).group_by("pipeline").agg(times=pl.len()).sort("pipeline")


def _pipelines(explanation: Explanation) -> int:
    """Return how many pipelines have iterations."""
    every = [rows.select("pipeline").unique() for rows in parts_of(explanation, "iterations")]
    return pl.concat(every).n_unique()


def last_pipelines_text(explanation: Explanation) -> str | None:
    """Return which pipeline the others waited for, or that it changes; None with a single pipeline."""
    pipelines = _pipelines(explanation)
    if pipelines < FEWEST_PIPELINES:
        return None
    counts = _times_last(explanation)
    usual = counts.sort("times", "pipeline", descending=[True, False]).row(0, named=True)
    steps = sum(rows["step"].n_unique() for rows in parts_of(explanation, "iterations"))
    if usual["times"] >= USUAL_FRACTION * steps:
        return f"the pipeline of rank {usual['pipeline']} is last in {usual['times']} of {steps} iterations"
    return f"the last pipeline changes: {counts.height} of {pipelines} pipelines were last at least once"


def slowest_pipeline_sentence(explanation: Explanation, cause_text: Callable[[str, float], str]) -> str:
    """Return what the iterations of the last pipeline consist of; empty with a single pipeline.

    In its ledger a straggler is the work that it has more than its replicas, and not the idle time of the others.
    `cause_text` returns the label and the details of a cause, given its name and its fraction.
    """
    losses = explanation.losses
    if losses.is_empty() or _pipelines(explanation) < FEWEST_PIPELINES:
        return ""
    fractions = dict(losses.select("part", "fraction").iter_rows())
    ideal = percent_text(fractions.pop(IDEAL))
    named = sorted(((fraction, name) for name, fraction in fractions.items()), reverse=True)[:MOST_PARTS]
    listed = "".join(
        f", {percent_text(fraction)} {cause_text(name, fraction)}"
        for fraction, name in named
        if fraction >= LEAST_PART_FRACTION
    )
    return f"The last pipeline sets the iteration; its time is {ideal} ideal work{listed}."
