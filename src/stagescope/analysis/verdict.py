"""The verdict: one sentence about idle time by cause, the best fix and redesign, and further findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.analysis.cause_details import QUIET, cause_detail
from stagescope.analysis.completeness.missing_ranks import MAYBE_MISSING
from stagescope.analysis.finding_sentences import changing_ranks_text
from stagescope.analysis.findings import EXPLAINED_RATIO, find_findings
from stagescope.analysis.iteration.last_pipeline import (
    last_pipelines,
    last_pipelines_text,
    slowest_pipeline_sentence,
)
from stagescope.analysis.kernels.sentences import communication_sentences
from stagescope.analysis.prediction.improvements import FIX, REDESIGN
from stagescope.analysis.prediction.unknown_devices import CONDITIONS
from stagescope.model.lazy import parts_of, with_known
from stagescope.model.simulated import simulated_time_text
from stagescope.vocabulary.causes import BY_COLUMN
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.number_ranges import MOST_LISTED, listed_numbers
from stagescope.vocabulary.ratios import comparative_text, percent_text, points_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.report import Report

IMBALANCE_FRACTION = 0.02
"""A stage is named as the slowest if it costs at least this much more than the mean of the others."""

LEAST_POINTS_FRACTION = 0.005
"""Smaller causes are not in the sentence."""

QUIET_FRACTION = 0.015
"""Below it, no details are given of a quiet cause."""

MOST_DETAILS = 4
"""Causes of a sentence that have details in parentheses; more are hard to read."""

SIMILAR_FRACTION = 0.5
"""Stages that take at least so much of what the slowest takes more are named with it, unless they are many."""

MOST_CHANGING = 3
"""Ranks that are slow in some steps only, in one detail."""

MOST_FINDINGS = 5
SECONDARY_RATIO = 4.0
"""A fix is named after a division of the model that gains so many times more."""


CONTRADICTORY = (
    "timestamps contradict the order of the actions, which started long before their inputs were computed; "
    "why ranks were idle cannot be derived."
)

UNCERTAIN = (
    "the clocks of some machines may be off by more than half the pipeline window; why ranks were idle cannot be "
    "derived."
)


class Verdict(NamedTuple):
    """`why` states how much time is lost and why, `findings` are further sentences.

    `improvement` states the best fix, and the largest redesign that needs no more memory, one sentence each.

    `slowest` states what the time of the pipeline that sets the iteration consists of; empty with a single pipeline.
    `tested` states which fixes and schedules were tested for `improvement`, and which schedules were not and why.
    """

    why: str
    improvement: str
    findings: tuple[str, ...]
    slowest: str = ""
    tested: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.why, self.slowest, self.improvement)))


def give_verdict(report: Report, explanation: Explanation) -> Verdict:
    """Return the verdict on a report.

    The points of `why` are percent of the iteration, or of the pipeline window if no whole iteration was recorded, with
    the values of the table of causes. Causes below half a point are in the table only.
    """
    fraction = report.bubble.fraction
    of_kernels = communication_sentences(report.kernel_communication_kinds)
    if fraction is None:
        return Verdict(_nothing_measured(report, has_kernels=bool(of_kernels)), "", of_kernels)
    if report.intermediates.actions.is_contradictory:
        reason = UNCERTAIN if report.intermediates.actions.is_uncertain else CONTRADICTORY
        return Verdict(f"{_describe_run(report, explanation)}: {reason}", "", ())
    findings = find_findings(explanation)
    return Verdict(
        f"{_describe_run(report, explanation)}{_lost(explanation)}.",
        _best_improvements(explanation, in_cost_units=report.in_cost_units),
        (*findings["evidence"].head(MOST_FINDINGS), *of_kernels),
        slowest_pipeline_sentence(
            explanation, _cause_texts(_of_last(explanation), last_pipelines(explanation))
        ),
        explanation.tested.sentence(),
    )


def _nothing_measured(report: Report, *, has_kernels: bool) -> str:
    """Return why a report has no bubble; with kernels there is something to report all the same."""
    reason = report.bubble.unknown_because
    if has_kernels:
        return f"The bubble is unknown: {reason}."
    return f"{reason[0].upper()}{reason[1:]}; there is nothing to explain."


def _describe_run(report: Report, explanation: Explanation) -> str:
    size = counted(report.stage_count, "stage")
    if report.microbatches:
        size += f" x {counted(report.microbatches, 'micro-batch', 'micro-batches')}"
    if report.steps_per_iteration > 1:
        size += f", {report.steps_per_iteration} steps per iteration"
    if report.intermediates.missing:
        size += f" ({report.intermediates.missing})"
    ideal = explanation.ideal
    if MAYBE_MISSING in {each.code for each in ideal.diagnostics}:
        size += " (the last rank seems to be missing)"
    name = report.schedule or ideal.schedule
    if report.schedule and ideal.source == "recognized" and not ideal.agrees_with(report.schedule):
        name = f"{ideal.schedule} (declared: {report.schedule})"
    return f"{name or 'Pipeline'}, {size}"


def _lost(explanation: Explanation) -> str:
    """Return how much of the time is lost and the points per cause, the largest first; without 0 points."""
    lost = explanation.lost_time
    if lost is None:
        return ", 0 % idle"
    head = f", {percent_text(lost.lost_fraction)} idle"
    if lost.basis == "iteration":
        mean_ns = lost.whole_ns // lost.rows
        iteration = f"the iteration ({duration_text(mean_ns)})"
        head = f": {percent_text(lost.lost_fraction)} of {iteration} is {'not compute' if lost.is_idle else 'lost'}"
    named = sorted(((lost.fraction(name), name) for name in lost.causes_ns), reverse=True)
    named = [(fraction, name) for fraction, name in named if abs(fraction) >= LEAST_POINTS_FRACTION]
    if not named:
        return head
    pipelines = {each for rows in parts_of(explanation.ledger, "steps") for each in rows["pipeline"].unique()}
    cause_text = _cause_texts(explanation, pipelines)
    parts = [
        f"{points_text(fraction)} {cause_text(name.removesuffix('_ns'), fraction)}"
        for fraction, name in named
    ]
    parts[0] = parts[0].replace(" ", " points ", 1)
    return f"{head}: {', '.join(parts)}"


def _of_last(explanation: Explanation) -> Explanation:
    """Return an explanation whose lost time is that of the last pipeline, per iteration, as in the table LOSSES."""
    lost = explanation.lost_time
    if lost is None:
        return explanation
    parts = {
        part: round(part_ns or 0) for part, part_ns in explanation.losses.select("part", "ns").iter_rows()
    }
    causes = {name: parts.get(name.removesuffix("_ns"), 0) for name in lost.causes_ns}
    return with_known(explanation, lost_time=lost._replace(causes_ns=causes, rows=1))


def _cause_texts(explanation: Explanation, pipelines: Collection[int]) -> Callable[[str, float], str]:
    """Return a function that, given a cause and its fraction, returns its label and, for the first few, its details."""
    details = 0

    def cause_text(name: str, fraction: float) -> str:
        nonlocal details
        detail = None
        if name in QUIET and fraction < QUIET_FRACTION:
            pass  # who costs most of next to nothing is of no interest
        elif name == "stage_imbalance":
            detail = _slowest_stage(explanation)
        elif name == "data_parallel_wait":
            detail = last_pipelines_text(explanation)
        else:
            detail = cause_detail(name, explanation, pipelines)
        details += detail is not None
        label = BY_COLUMN[f"{name}_ns"].label
        return f"{label} ({detail})" if detail and details <= MOST_DETAILS else label

    return cause_text


def _slowest_stage(explanation: Explanation) -> str | None:
    """Return which stage costs most and how much more than the mean of the others; None below 2 %.

    Without replicas, a rank that is slow in some steps looks like a stage that takes longer, and is named instead.
    """
    work = explanation.stage_work.drop_nulls("work_to_others")
    if work.is_empty():
        return None
    slowest = work.row(work["work_to_others"].arg_max() or 0, named=True)
    changing = _changing_ranks(explanation, slowest)
    if changing is not None or slowest["work_to_others"] - 1 < IMBALANCE_FRACTION:
        return changing
    return _slow_stages_text(explanation, work.with_columns(more=pl.col("work_to_others") - 1))


def _slow_stages_text(explanation: Explanation, work: pl.DataFrame) -> str:
    """Return the stages that take longer, those with at least half of what the slowest takes more.

    Of a stage that no replica runs, the device may be slow instead.
    """
    slow = work.filter(pl.col("more") >= SIMILAR_FRACTION * pl.col("more").max()).sort("stage")
    if slow.height > MOST_LISTED:
        slow = work.sort("more", "stage", descending=[True, False]).head(1)
    stages = slow["stage"].to_list()
    ratios = slow["work_to_others"].to_list()
    verb = "takes" if len(stages) == 1 else "take"
    longer = comparative_text("longer", min(ratios), max(ratios), decimals=1)
    ranks = _only_ranks(explanation, stages)
    be = "is" if len(ranks) == 1 else "are"
    alternative = f", or {listed_numbers('rank', ranks)} {be} slow" if ranks else ""
    return f"{listed_numbers('stage', stages)} {verb} {longer}{alternative}"


def _only_ranks(explanation: Explanation, stages: list[int]) -> list[int]:
    """Return the ranks that run these stages, if no other rank does: then none shows whether they are slow."""
    costs = explanation.stage_costs.drop_nulls("rank").filter(pl.col("stage").is_in(stages))
    ranks = costs.group_by("stage").agg(pl.col("rank").unique())["rank"].to_list()
    return sorted({rank for each in ranks for rank in each}) if all(len(each) == 1 for each in ranks) else []


def _changing_ranks(explanation: Explanation, slowest: Mapping[str, Any]) -> str | None:
    """Return which ranks without replicas are slow in some steps, if that is why the slowest stage takes longer.

    None if that stage takes longer than the slow steps of its ranks explain.
    """
    changing = explanation.stragglers.changing.filter(~pl.col("has_peers"), finding="intermittent")
    if not 0 < changing.height <= MOST_CHANGING:
        return None
    of_stage = explanation.stage_costs.filter(stage=slowest["stage"])["rank"].unique()
    mean = pl.col("excess_fraction") * pl.col("slow_count") / pl.col("steps")
    explained = changing.filter(pl.col("rank").is_in(of_stage.implode())).select(mean.max()).item()
    more = slowest["work_to_others"] - 1
    is_explained = more < IMBALANCE_FRACTION or more <= EXPLAINED_RATIO * (explained or 0.0)
    return changing_ranks_text(changing) if is_explained else None


def _best_improvements(explanation: Explanation, *, in_cost_units: bool) -> str:
    """Return the best fix and the largest redesign, each with both step times; the fix first, unless it gains little.

    Without another fix, and beside a layout, the ranks whose devices may be slow instead follow.
    A redesign that needs more memory is a sentence of its own, if it gains more than both.
    """
    lost = explanation.lost_time
    step = "iteration" if lost and lost.basis == "iteration" else "step"
    kind, more, is_unknown = (
        pl.col("kind"),
        pl.col("needs_more_memory"),
        pl.col("condition").is_in(CONDITIONS),
    )
    fix, unknown, free, larger = (
        explanation.improvements.filter(each).head(1).to_dicts()
        for each in (
            (kind == FIX) & ~is_unknown,
            (kind == FIX) & is_unknown,
            (kind == REDESIGN) & ~more,
            (kind == REDESIGN) & more,
        )
    )
    if larger and larger[0]["gain_ns"] <= max((row["gain_ns"] for row in fix + free), default=0.0):
        larger = []
    named = [("Fix first", fix), ("Redesign", free)]
    if fix and free and _is_secondary(fix[0], free[0]):
        named = [("Redesign", free), ("Fix", [] if _gains_less(fix, unknown) else fix)]
    sentences = [
        f"{head}: {_prediction_text(row, step, in_cost_units=in_cost_units)}."
        for head, rows in named
        for row in rows
    ]
    if not fix or (free and free[0]["method"] == "replay"):
        # Moving layers helps if they are the reason; otherwise the devices are.
        for row in unknown:
            text = f"{row['change']} ({row['condition']}), at best {_less_of_bound(row)}"
            text = text if sentences else _prediction_text(row, step, in_cost_units=in_cost_units)
            sentences.append(f"Fix: {text}.")
    for row in larger:
        # Next to others it is only named, so that the report stays one screen; the table has its ranks and memory.
        text = f"{row['change']}, {_less_text(row)}"
        text = text if sentences else _prediction_text(row, step, in_cost_units=in_cost_units)
        sentences.append(f"With more memory: {text}.")
    if not sentences and explanation.tested.is_nothing:
        return "No change was tested."
    return " ".join(sentences) or f"No tested change would shorten the {step} by 0.5 % or more."


def _gains_less(fix: Sequence[Mapping[str, Any]], unknown: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a fix is a bound below that of the ranks that may be slow: the table has it."""
    return any(
        one["high_step_ns"] >= one["measured_step_ns"] and one["gain_ns"] < other["gain_ns"]
        for one in fix
        for other in unknown
    )


def _is_secondary(fix: Mapping[str, Any], redesign: Mapping[str, Any]) -> bool:
    """Return whether a fix gains little compared with stages of equal cost, which take away a cause as well."""
    if redesign["method"] != "replay":
        return False
    is_bound = fix["high_step_ns"] >= fix["measured_step_ns"]
    ratio = 1.0 if is_bound else SECONDARY_RATIO
    return bool(redesign["gain_ns"] > ratio * fix["gain_ns"])


def _prediction_text(row: Mapping[str, Any], step: str, *, in_cost_units: bool) -> str:
    """Return a change with both step times (of a bound at best, of a range both ends), its memory and layout."""
    # The first clause of a layout's note is the line for Megatron; further ones are only in the table.
    layout = next((part for part in (row["note"] or "").split("; ") if part.startswith("Megatron")), "")
    further = [row["memory"], layout]
    return "; ".join(filter(None, [_step_times_text(row, step, in_cost_units=in_cost_units), *further]))


def _step_times_text(row: Mapping[str, Any], step: str, *, in_cost_units: bool) -> str:
    unit = " cost units" if in_cost_units else ""
    before, after, low, high = (
        simulated_time_text(round(row[f"{name}_step_ns"]), in_cost_units=in_cost_units)
        for name in ("measured", "predicted", "low", "high")
    )
    change = row["change"] + (f" ({row['condition']})" if row["condition"] else "")
    if row["high_step_ns"] >= row["measured_step_ns"]:
        return f"{change}, from {before} to {after}{unit} per {step} at best, {_less_of_bound(row)}"
    after = f"about {after}" if low == high else f"between {low} and {high}"
    return f"{change}, from {before} to {after}{unit} per {step}, {_less_text(row)}"


def _less_of_bound(row: Mapping[str, Any]) -> str:
    """Return by how many percent a change shortens the step at best."""
    return f"{100 * row['gain_ns'] / row['measured_step_ns']:.0f} % less"


def _less_text(row: Mapping[str, Any]) -> str:
    """Return by how many percent a change shortens the step, from the least to the most."""
    least, most = (
        f"{100 * max(1 - row[f'{end}_step_ns'] / row['measured_step_ns'], 0):.0f}" for end in ("high", "low")
    )
    return f"{most} % less" if least == most else f"{least} to {most} % less"
