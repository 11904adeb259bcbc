"""Metrics of every step and rank, and which steps count toward the totals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.completeness.incomplete_steps import (
    find_steps_without_ranks,
    incomplete_step_diagnostics,
)
from stagescope.model.bubbles import bubble_fraction, bubbles_of_steps, unrecorded_waits
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import chosen_rows, reduced
from stagescope.model.lazy import parts_of
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.number_ranges import steps_text, verb
from stagescope.vocabulary.ratios import LARGEST_PERCENT_RATIO, multiple_text
from stagescope.vocabulary.steps import skipped_steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.analysis.intermediates import Intermediates
    from stagescope.analysis.iteration.accumulation import Accumulation
    from stagescope.vocabulary.steps import Skipped

FIRST_STEP_RATIO = 1.25
"""The first step is left out of the totals if it took longer than this many times the median of the others."""

FEWEST_OTHER_STEPS = 2

REPORT_STEPS = Table(
    "report_steps",
    "one training step over all measured ranks",
    ("step",),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("start_ns", pl.Int64, "ns", "First start of a window; pipelines are data-parallel replicas."),
        Column("end_ns", pl.Int64, "ns", "Last end of a window."),
        Column("window_ns", pl.Int64, "ns", "Longest window of one pipeline."),
        Column("bubble_fraction", pl.Float64, "", "Idle time over window, both summed over all ranks."),
        Column("in_totals", pl.Boolean, "", "Whether the step counts toward the totals."),
    ),
)

REPORT_RANKS = Table(
    "report_ranks",
    "one rank, summed over the steps in the totals",
    ("rank",),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column("machine", pl.String, "", "Its machine.", nullable=True),
        Column("stages", pl.List(pl.Int32), "", "Global stages that it runs, sorted."),
        Column("busy_ns", pl.Int64, "ns", "Union of its compute spans inside the windows."),
        Column("idle_ns", pl.Int64, "ns", "The rest: busy_ns + idle_ns = window_ns."),
        Column(
            "receive_wait_ns",
            pl.Int64,
            "ns",
            "Blocked on receives inside the windows; null: the run recorded no such wait.",
            nullable=True,
        ),
        Column(
            "send_wait_ns",
            pl.Int64,
            "ns",
            "Blocked on sends inside the windows; null likewise.",
            nullable=True,
        ),
        Column("window_ns", pl.Int64, "ns", "Windows of its pipeline."),
        Column("bubble_fraction", pl.Float64, "", "idle_ns / window_ns; 0 for windows without length."),
    ),
)


class Totals(NamedTuple):
    """The tables REPORT_STEPS and REPORT_RANKS, and diagnostics for steps that are not in the totals."""

    steps: pl.DataFrame
    ranks: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]

    @property
    def counted(self) -> tuple[int, ...]:
        """The steps in the totals."""
        return tuple(self.steps.filter("in_totals")["step"].to_list())


def measure_totals(known: Intermediates, skipped: Skipped | None = None) -> Totals:
    """Return the metrics of all steps and ranks; `skipped` steps are not in the totals.

    If gradients are accumulated over several steps, an iteration is in the totals as a whole or not at all, as long as
    there is a whole one.

    The first of three or more steps, whatever its number, is not in the totals if it, or its iteration, took more than
    1.25 times the median of the others with as many micro-batches: connections are set up and shapes are inferred in
    it, and what the optimizer step needs is imported. Incomplete steps are not, as long as there are complete ones.
    """
    accumulation, bubbles = known.accumulation, known.windows.parts
    per_step = pl.concat([bubbles_of_steps(rows) for rows in bubbles])
    per_step = per_step.join(accumulation.table, on="step", maintain_order="left")
    lost = find_steps_without_ranks(bubbles)
    incomplete = (known.incomplete_steps | lost) & set(per_step["step"])
    leaves_incomplete = len(incomplete) < per_step.height
    left_out = [] if skipped is None else skipped_steps(skipped, per_step["step"])
    is_complete = ~pl.col("step").is_in(left_out)
    if incomplete and leaves_incomplete:
        is_complete &= ~pl.col("step").is_in(list(incomplete))
    complete = per_step.filter(is_complete)
    slow_start = _slow_first_step(complete, known)
    in_totals = is_complete & (pl.col("step") != complete["step"].min()) if slow_start else is_complete
    steps, cut = _whole_iterations(per_step.with_columns(in_totals=in_totals), accumulation)
    counted = steps.filter("in_totals")["step"]
    return Totals(
        steps.select(REPORT_STEPS.names),
        _per_rank(known, (chosen_rows(rows, pl.col("step").is_in(counted.implode())) for rows in bubbles)),
        (
            *incomplete_step_diagnostics(incomplete, lost, left_out=leaves_incomplete),
            *slow_start,
            *_skipped(left_out),
            *cut,
        ),
    )


def _whole_iterations(
    steps: pl.DataFrame, accumulation: Accumulation
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the steps, of which those of iterations in part are no longer in the totals, and a diagnostic for them."""
    if accumulation.steps_per_iteration == 1:
        return steps, []
    is_whole = (pl.col("in_totals") & pl.col("is_complete")).all().over("iteration")
    kept = steps.with_columns(in_totals=is_whole)
    cut = steps.filter("in_totals").join(kept.filter("in_totals"), on="step", how="anti")["step"].to_list()
    if not cut or not kept["in_totals"].any():
        return steps, []
    message = (
        f"{_left_out(cut)}: gradients are accumulated over "
        f"{accumulation.steps_per_iteration} steps, and the other steps of its iteration are not in the totals"
    )
    return kept, [Diagnostic("info", message, count=len(cut), code="steps.partial_iteration")]


def _left_out(steps: list[int]) -> str:
    """Return that these steps are in tables, but not in the totals."""
    return f"{steps_text(steps)} {verb(steps, 'is', 'are')} listed and left out of the totals"


def _skipped(steps: list[int]) -> list[Diagnostic]:
    if not steps:
        return []
    message = f"{_left_out(steps)}, as requested"
    return [Diagnostic("info", message, count=len(steps), code="steps.skipped")]


def _per_rank(known: Intermediates, counted: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the sums of every rank, given rows of step_bubbles, some steps after the others."""
    times = pl.sum("busy_ns", "idle_ns", "receive_wait_ns", "send_wait_ns", "window_ns")
    sums = reduced(counted, lambda rows: rows.group_by("rank").agg(times)).sort("rank")
    return (
        sums.with_columns(
            bubble_fraction(pl.col("idle_ns"), pl.col("window_ns")), **unrecorded_waits(known.recorded_waits)
        )
        .join(known.timeline.ranks.select("rank", "machine"), on="rank", how="left", maintain_order="left")
        .join(known.rank_stages, on="rank", how="left", maintain_order="left")
        .select(pl.col(name).cast(dtype) for name, dtype in REPORT_RANKS.schema.items())
    )


def _slow_first_step(complete: pl.DataFrame, known: Intermediates) -> list[Diagnostic]:
    """Return why the first step is not in the totals; empty if it is."""
    if complete.height <= FEWEST_OTHER_STEPS:
        return []
    counts = reduced(parts_of(known, "microbatch_counts"), _most_microbatches)
    per_step = complete.join(counts, on="step", how="left", maintain_order="left")
    follows = pl.col("step").shift(-1) == pl.col("step") + 1
    # As iterations begin (iteration/boundaries.py): the first one with anything that was recorded of its step.
    first = pl.col("step") == per_step["step"][0]
    recorded_ns = known.recorded.filter(first)["recorded_start_ns"].min()
    begins_ns = pl.when(first).then(pl.min_horizontal("start_ns", pl.lit(recorded_ns))).otherwise("start_ns")
    until_next = pl.when(follows).then(pl.col("start_ns").shift(-1) - begins_ns)
    for what, length_ns in (("step", pl.col("window_ns")), ("the iteration of step", until_next)):
        every = per_step.select(length_ns=length_ns, count=pl.col("microbatches").fill_null(0).clip(1))
        took = _how_slow(every)
        if took:
            text = f"{what} {per_step['step'][0]} took {took}; it is listed and left out of the totals"
            return [Diagnostic("info", text, code="steps.slow_first")]
    return []


def _most_microbatches(counts: pl.DataFrame) -> pl.DataFrame:
    return counts.group_by("step").agg(pl.max("microbatches"))


def _how_slow(every: pl.DataFrame) -> str:
    """Return how much longer than the others the first step took; empty if not by FIRST_STEP_RATIO.

    `every` has length_ns and the `count` of micro-batches of each step. A step is compared with those that have as many
    micro-batches. Without enough of these it has to be longer than the others both as a whole and per micro-batch: how
    long a step takes grows with its micro-batches, but less than in proportion, because filling the pipeline does not.
    """
    first_ns, count = every.row(0)
    others = every[1:].drop_nulls("length_ns")
    if first_ns is None or others.height < FEWEST_OTHER_STEPS:
        return ""
    alike = others.filter(pl.col("count") == count)
    if alike.height == others.height:
        return _excess(first_ns, others["length_ns"], "the median of the other steps")
    if alike.height >= FEWEST_OTHER_STEPS:
        whose = "the median of the other steps with as many micro-batches"
        return _excess(first_ns, alike["length_ns"], whose)
    per_microbatch = others["length_ns"] / others["count"]
    return _excess(first_ns, others["length_ns"], "the median of the other steps") and _excess(
        first_ns / count, per_microbatch, "the median of the other steps per micro-batch"
    )


def _excess(first_ns: float, others_ns: pl.Series, whose: str) -> str:
    """Return how many times the median of the others the first one is; empty if not more than FIRST_STEP_RATIO."""
    usual_ns = float(others_ns.median() or 0.0)  # type: ignore[arg-type]  # lengths are numbers
    if first_ns <= FIRST_STEP_RATIO * usual_ns:
        return ""
    if not usual_ns:
        return "longer than all others"
    ratio = first_ns / usual_ns
    # Up to ten times, two decimals show how far it is from the limit.
    times = multiple_text(ratio) if ratio > LARGEST_PERCENT_RATIO else f"{ratio:.2f}x"
    return f"{times} {whose}"
