"""One report from what was measured of all ranges of steps of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.explanation import explain
from stagescope.analysis.graph.causality import LARGE, SMALL
from stagescope.analysis.idle.overlap import OVERLAP
from stagescope.analysis.idle.phases import STEP_PHASES
from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.other_work import sum_other_work
from stagescope.analysis.ranges.measured import OF_LEDGER, OF_RUN
from stagescope.analysis.ranges.surveyed import PipelineSurvey
from stagescope.analysis.report import explained, report_of
from stagescope.analysis.statistics.action_samples import StepSamples
from stagescope.analysis.statistics.link_samples import StepLinks
from stagescope.analysis.statistics.transfer_totals import add_transfers
from stagescope.analysis.step_results import StepResults
from stagescope.model.step_ranges import is_in_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.analysis.ranges.measured import RangeAnalysis
    from stagescope.analysis.report import Report
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic
    from stagescope.vocabulary.steps import StepRange

OF_REFERENCE = ("basis", "busy", "inputs", "ideal", "turns", "missing")
"""Results of Intermediates that one range answers for the run."""
ROW = {"row": pl.lit(None, pl.UInt32)}
NO_PLACES = ROW | {"action": pl.lit(None, pl.UInt32)}
"""Rows of spans, and numbers of actions, are those of a range, and mean nothing in the whole run."""


def build_joined_report(
    timeline: Timeline,
    surveyed: Intermediates,
    reference: Intermediates,
    ranges: Sequence[RangeAnalysis],
) -> Report:
    """Return the report of a run with explanation and verdict, given what was measured of all its ranges of steps.

    `surveyed` is from join_surveys, `reference` are the intermediate results of one range. What the run as a whole is
    asked about single actions is answered by it: which schedule ran, the distribution of the times of actions, the
    predictions of improvements, and what ranks did at single moments. `timeline` has the ranks, clocks, counters and
    diagnostics of the whole run, and the spans of that range.
    """
    known = _joined(surveyed, reference, ranges)
    report = report_of(timeline, known)
    results = _join_results([each.results for each in ranges])
    return explained(report, explain(known, report.bubble.steps, results=results))


def _joined(
    surveyed: Intermediates, reference: Intermediates, ranges: Sequence[RangeAnalysis]
) -> Intermediates:
    """Return the intermediate results of the run."""
    # The steps next to the range are there in part only.
    timeline = _only_steps(reference.timeline, reference.steps)
    measured = {name: getattr(surveyed, name) for name in PipelineSurvey._fields[2:]}
    tables = {name: pl.concat([each.tables[name] for each in ranges]) for name in ranges[0].tables}
    of_run = {name: tables[name].sort(order) for name, order in OF_RUN.items()}
    of_ledger = {name: tables[f"ledger_{name}"].sort(order) for name, order in OF_LEDGER.items()}
    actions = replace(
        reference.actions,
        has_transfers=any(each.has_transfers for each in ranges),
        diagnostics=_added(note for each in ranges for note in each.of_actions),
    )
    ledger = replace(
        reference.ledger,
        **of_ledger,  # type: ignore[arg-type]  # those with tables
        diagnostics=_added(note for each in ranges for note in each.of_ledger),
    )
    chained = [each.chained for each in ranges if each.chained is not None]
    of_reference = {name: getattr(reference, name) for name in OF_REFERENCE}
    known = (
        of_run
        | of_reference
        | measured
        | {"critical_path": of_run["critical_path"].with_columns(**NO_PLACES)}
    )
    return Intermediates(timeline, surveyed.windows).with_results(
        **known,
        actions=actions,
        ledger=ledger,
        between_steps=reference.between_steps._replace(parts=tables["between"]),
        chained_losses=pl.concat(chained) if len(chained) == len(ranges) else None,
        step_chain=reference.step_chain if len(chained) == len(ranges) else None,
        transfers=add_transfers([each.transfers for each in ranges]),
        unrecorded=frozenset.intersection(*(each.unrecorded for each in ranges)),
    )


def _only_steps(timeline: Timeline, steps: StepRange | None) -> Timeline:
    """Return a timeline with the spans of some steps, and those without a step."""
    return timeline.with_spans(timeline.spans.filter(pl.col("step").is_null() | is_in_steps(steps)))


def _join_results(parts: Sequence[StepResults]) -> StepResults:
    outliers = pl.concat([each.outliers for each in parts]).with_columns(**ROW)
    return StepResults(
        samples=StepSamples(
            pl.concat([each.samples.table for each in parts]),
            pl.concat([each.samples.actions for each in parts]),
            max(each.samples.microbatches for each in parts),
            sum(each.samples.unplaced for each in parts),
            sum(each.samples.lengthless for each in parts),
        ),
        links=StepLinks(
            pl.concat([each.links.table for each in parts]),
            pl.concat([each.links.messages for each in parts]),
            pl.concat([each.links.counts for each in parts]),
        ),
        messages=pl.concat([each.messages for each in parts]),
        reduction_waits=pl.concat([each.reduction_waits for each in parts]),
        phases=pl.concat([each.phases for each in parts]).sort(STEP_PHASES.order),
        overlap=_with_known_zeros(pl.concat([each.overlap for each in parts]).sort(OVERLAP.order)),
        other_work=sum_other_work(pl.concat([each.other_work for each in parts])),
        outliers=outliers.sort("excess_ns", descending=True, maintain_order=True),
        waits_inside=tuple(sorted({rank for each in parts for rank in each.waits_inside})),
    )


def _with_known_zeros(overlap: pl.DataFrame) -> pl.DataFrame:
    """Return overlaps in which a time is null only if it was recorded nowhere in the run: elsewhere there was none."""
    times = [name for name in overlap.columns if name.endswith("_ns")]
    recorded = [name for name in times if overlap[name].null_count() < overlap.height]
    return overlap.with_columns(pl.col(recorded).fill_null(0))


def _added(notes: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return diagnostics with one row per code and rank, and all counts: the first one; of contradictions, the most."""
    alike: dict[tuple[object, ...], list[Diagnostic]] = defaultdict(list)
    for note in notes:
        alike[note.code, note.severity, note.rank].append(note)
    return tuple(
        replace(
            max(rows, key=lambda row: row.count) if rows[0].code in (LARGE, SMALL) else rows[0],
            count=sum(row.count for row in rows),
        )
        for rows in alike.values()
    )
