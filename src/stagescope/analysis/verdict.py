"""The verdict: in two sentences, how much of the pipeline is idle and why, and what would win most of it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.idle.shares import whole_percents
from stagescope.model.simulated import simulated_time_text
from stagescope.vocabulary.causes import BY_COLUMN, CAUSE_COLUMNS
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.report import Report

UNEVEN_FRACTION = 0.02
"""By how much more than the others a stage must cost to be named as what makes them unequal."""

MOST_FINDINGS = 5


class Verdict(NamedTuple):
    """`why` says how much is idle and why, `win` what would help most; `findings` are what else is sure."""

    why: str
    improvement: str
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.why} {self.improvement}"


def give_verdict(report: Report, explanation: Explanation) -> Verdict:
    """Return the verdict on a report; `why` has the bubble's percents by cause, which sum to the whole."""
    fraction = report.bubble.fraction
    if fraction is None or not report.ranks:
        return Verdict(f"{nothing_measured(report)}, so there is nothing to explain.", "", ())
    why = f"{_what_ran(report, explanation)}, {100 * fraction:.0f} % idle{_causes(explanation)}."
    return Verdict(
        why,
        _largest_improvement(explanation, in_cost_units=report.in_cost_units),
        tuple(_findings(explanation))[:MOST_FINDINGS],
    )


def nothing_measured(report: Report) -> str:
    """Return why a report has no bubble, as a clause."""
    if report.apart:
        return "The machines of no pipeline are on one clock"
    return "No step with a forward or backward action was recorded"


def _what_ran(report: Report, explanation: Explanation) -> str:
    stages = {stage for rank in report.ranks for stage in rank.stages}
    size = counted(len(stages) or len(report.ranks), "stage")
    if report.microbatches:
        size += f" x {counted(report.microbatches, 'micro-batch', 'micro-batches')}"
    ideal = explanation.ideal
    name = report.schedule or ideal.schedule
    if report.schedule and ideal.source == "recognized" and not ideal.agrees_with(report.schedule):
        name = f"{ideal.schedule} (declared: {report.schedule})"
    return f"{name or 'Pipeline'}, {size}"


def _causes(explanation: Explanation) -> str:
    """Return the points of the bubble by cause, the largest first; those that round to nothing are not named."""
    fractions = explanation.idle_fractions()
    if not fractions:
        return ""
    points = zip(whole_percents([fractions[name] for name in CAUSE_COLUMNS]), CAUSE_COLUMNS, strict=True)
    named = sorted(((point, name) for point, name in points if point), reverse=True, key=lambda each: each[0])
    if not named:
        return ""
    (most, cause), *others = named
    unit = "point" if abs(most) == 1 else "points"
    first = f"{most} {unit} {_come(most, cause, explanation)}"
    return f": {', '.join([first, *(_part(point, name, explanation) for point, name in others)])}"


def _part(points: int, cause: str, explanation: Explanation) -> str:
    """Return one of the further parts; a negative one is idle time that its cause saves."""
    if points > 0:
        return f"{points} {_come(points, cause, explanation)}"
    return f"less {-points} for {'work besides' if cause == 'unattributed_ns' else BY_COLUMN[cause].label}"


def _come(points: int, cause: str, explanation: Explanation) -> str:
    """Return where percent points come from, in words that follow their number."""
    one = abs(points) == 1
    if cause == "schedule_bubble_ns":
        return f"{'is' if one else 'are'} schedule bubble"
    source = BY_COLUMN[cause].label
    if cause == "stage_imbalance_ns":
        source = _slowest_stage(explanation) or source
    return f"{'comes' if one else 'come'} from {source}"


def _slowest_stage(explanation: Explanation) -> str | None:
    """Return which stage costs most and by how much more than the mean of the others, if that is worth a name."""
    work = explanation.stage_work.drop_nulls("work_to_mean")
    if work.height <= 1:
        return None
    worst = work.row(work["work_ns"].arg_max() or 0, named=True)
    others_ns = (work["work_ns"].sum() - worst["work_ns"]) / (work.height - 1)
    more = worst["work_ns"] / others_ns - 1 if others_ns else 0.0
    if more < UNEVEN_FRACTION:
        return None
    return f"stage {worst['stage']} taking {100 * more:.0f} % longer than the others"


def _largest_improvement(explanation: Explanation, *, in_cost_units: bool) -> str:
    """Return the largest gain that costs no memory, and how large it is."""
    free = explanation.improvements.filter(~pl.col("needs_more_memory"))
    if free.is_empty():
        return "Nothing that was tried would make the step shorter."
    best = free.row(0, named=True)
    before, after = (
        simulated_time_text(round(best[f"{name}_step_ns"]), in_cost_units=in_cost_units)
        for name in ("measured", "predicted")
    )
    unit = " units of cost" if in_cost_units else ""
    doubt = f" ({best['condition']})" if best["condition"] else ""
    return (
        f"Largest win: {best['assumption']}{doubt}, from {before} to about {after}{unit} a step, "
        f"{100 * best['gain_fraction']:.0f} % less."
    )


def _findings(explanation: Explanation) -> Iterator[str]:
    for row in explanation.stragglers.table.filter("is_claimed").iter_rows(named=True):
        yield straggler_sentence(row)
    for row in explanation.trends.outliers.iter_rows(named=True):
        yield (
            f"Step {row['step']} took {duration_text(round(row['excess_ns']))} longer than usual"
            f"{_where(row)}."
        )
    for row in explanation.trends.trends.filter("is_claimed").iter_rows(named=True):
        way = "longer" if row["slope_ns_per_step"] > 0 else "shorter"
        yield f"Steps became {way}, by {100 * abs(row['change_fraction']):.1f} % from first to last."
    for row in explanation.replicas.table.filter("is_claimed").iter_rows(named=True):
        yield (
            f"The pipeline of rank {row['pipeline']} is last in {row['last_count']} of {row['steps']} steps; "
            f"the other replicas' ranks waited {duration_text(row['caused_wait_ns'])} for it, summed over them."
        )


def straggler_sentence(row: dict[str, object]) -> str:
    """Return a claimed row of STRAGGLERS in words, with its interval and the count of its witnesses."""
    low, high = (100 * float(str(row[f"{end}_fraction"])) for end in ("low", "high"))
    subject, finding = row["subject"], row["finding"]
    who = {
        "rank": f"Rank {row['rank']}",
        "machine": f"Machine {row['machine']}",
        "stage": f"Stage {row['stage']}",
        "link": f"The link from rank {row['rank']} to rank {row['peer']}",
    }[str(subject)]
    does = {
        "noisy": "has times spread wider",
        "slow": "is slower",
        "imbalance": "costs more",
        "imbalance or slow device": "takes longer (more work, or a slower device: nothing runs the same stage)",
    }[str(finding)]
    return (
        f"{who} {does} than {row['compared_with']}, by {low:.1f} to {high:.1f} % "
        f"(95 % CI, n = {row['sample_count']})."
    )


def _where(row: dict[str, object]) -> str:
    if row["rank"] is None:
        return ""
    if row["peer"] is None:
        return f"; most of it on rank {row['rank']}"
    return f"; most of it on the link from rank {row['rank']} to rank {row['peer']}"
