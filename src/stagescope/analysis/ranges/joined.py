"""One report from what was measured of all ranges of steps of a run."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.collectives.lateness import LATENESS, Lateness
from stagescope.analysis.explanation import explain
from stagescope.analysis.graph.actions import Actions, judge_timestamps
from stagescope.analysis.graph.causality import LARGE, SMALL, UNCERTAIN
from stagescope.analysis.idle.ledger import Ledger
from stagescope.analysis.idle.overlap import OVERLAP
from stagescope.analysis.idle.phases import STEP_PHASES
from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.iteration.activities import ActivityUnions
from stagescope.analysis.iteration.between_steps import BetweenSteps
from stagescope.analysis.iteration.culprit_sums import CausesOfSteps, sum_causes
from stagescope.analysis.iteration.culprits import CULPRITS, name_culprits
from stagescope.analysis.iteration.outside_activity import add_outside_activity
from stagescope.analysis.iteration.outside_times import sum_own_work
from stagescope.analysis.other_pipelines import OtherPipelines
from stagescope.analysis.other_work import sum_other_work
from stagescope.analysis.ranges.long_tables import LongTable, WholePipelines
from stagescope.analysis.ranges.measured import OF_LEDGER, OF_RUN
from stagescope.analysis.ranges.reference import RESULTS
from stagescope.analysis.ranges.surveyed import OF_STEPS, PipelineSurvey
from stagescope.analysis.report import explained, report_of
from stagescope.analysis.statistics.action_samples import StepSamples
from stagescope.analysis.statistics.link_samples import StepLinks
from stagescope.analysis.statistics.sample_comparisons import RunSamples, compare_samples
from stagescope.analysis.statistics.transfer_totals import add_transfers
from stagescope.analysis.step_results import (
    JoinedResults,
    OutsideResults,
    PipelineResults,
    StepResults,
    join_waits,
)
from stagescope.analysis.unrecorded import (
    empty_columns,
    join_recorded_causes,
    unrecorded_columns,
    without_columns,
)
from stagescope.model.diagnostics import first_of_alike
from stagescope.model.large_tables import reduced, united_rows
from stagescope.model.lazy import InParts, TableParts, in_parts, lazily, parts_of, with_known, with_later

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from stagescope.analysis.counters.parts import ShownCounters
    from stagescope.analysis.iteration.culprit_sums import CauseSums
    from stagescope.analysis.ranges.measured import RangeAnalysis
    from stagescope.analysis.ranges.reference import Reference
    from stagescope.analysis.report import Report
    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.analysis.statistics.sample_comparisons import SampleComparisons
    from stagescope.analysis.statistics.step_trend import OutlierWindows
    from stagescope.model import Timeline
    from stagescope.model.diagnostics import Diagnostic

OF_ACTIONS = ("table", "needs", "partners", "reductions", "inside")
"""Results of Actions that the reference answers for the run."""
NOTHING_BETWEEN = (pl.DataFrame(), ActivityUnions(pl.DataFrame()))
NO_SAMPLES = StepSamples(pl.DataFrame(), 0, 0)
NO_LINKS = StepLinks(pl.DataFrame(), pl.DataFrame())
NO_ROW = {"row": pl.lit(None, pl.UInt32)}
NO_PLACES = NO_ROW | {"action": pl.lit(None, pl.UInt32)}
"""Rows of spans, and numbers of actions, are those of a range, and mean nothing in the whole run."""
JUDGED = (LARGE, SMALL, UNCERTAIN)
"""Codes of diagnostics of a range that are judged for all steps together."""
SCANNED = ("tables", "phases", "overlap", "lateness")
"""Fields of RangeAnalysis and its results whose tables are read when they are used."""
KEPT = ("iteration_steps",)
"""Tables of OF_RUN with few rows."""
WHOLE = ("losses", "orders")
"""Tables of OF_LEDGER that are saved with all steps."""


class MeasuredRun(NamedTuple):
    """What was measured of all ranges of steps of a run.

    `compare` returns what compare_ranges does, and `counters` is what those of the run show. Tables in the fields
    SCANNED of `ranges` may be LazyFrames.
    """

    ranges: Sequence[RangeAnalysis]
    compare: Callable[[], SampleComparisons]
    counters: ShownCounters


def build_joined_report(
    timeline: Timeline, surveyed: Intermediates, reference: Reference, measured: MeasuredRun
) -> Report:
    """Return the report of a run with explanation and verdict, given what was measured of all its ranges of steps.

    `surveyed` is from join_surveys. The results of the `reference` are loaded after what `measured.compare` returns,
    because both take much memory. `timeline` has the ranks, clocks and diagnostics of the whole run; it gets the spans
    of the reference.

    Tables with a row per rank and step are collected whenever they are used, and saved in pieces.
    """
    ranges = measured.ranges
    long = _long_tables(ranges)
    timeline = timeline.with_spans(reference.spans)
    known = _joined(with_known(surveyed, timeline=timeline), reference, ranges, long)
    report = report_of(timeline, known)
    lateness = Lateness(
        united_rows((_lateness(each).select("step").collect() for each in ranges), ["step"]),
        WholePipelines(long["lateness"], lambda rows: rows),
    )
    explanation = explain(known, report.bubble.steps, joined=_join_results(measured, lateness))
    tables = {name: long[name].rows for name in ("phases", "overlap")}
    in_parts_of = {
        "replicas.steps": partial(_parts_of, explanation.replicas, "steps"),
        "explanation.pauses": partial(_parts_of, explanation, "pauses"),
    }
    return replace(
        explained(report, with_later(explanation, tables)),
        pieces=_pieces(long, _is_in(report.bubble.steps)) | _of_report(known, long) | in_parts_of,
    )


def _parts_of(instance: object, name: str) -> Iterator[pl.DataFrame]:
    return iter(parts_of(instance, name))


def with_culprits(report: Report, ranges: Sequence[RangeAnalysis], causes: Callable[[], CauseSums]) -> Report:
    """Return a report with the table CULPRITS; `causes` returns the sums over its ranges, from sum_causes_of."""

    def pieces() -> Iterator[pl.DataFrame]:
        explanation = report.explanation
        if explanation is None:
            yield CULPRITS.empty()
            return
        iterations = [_table(each, "iterations") for each in ranges]
        outside, size = explanation.outside_culprits, explanation.steps_per_iteration
        yield from name_culprits(causes(), iterations, outside, size)

    return replace(
        report,
        saved={**report.saved, "culprits": lambda: pl.concat(pieces())},
        pieces={**report.pieces, "culprits": pieces},
    )


def compare_ranges(
    timeline: Timeline,
    pipelines: pl.DataFrame,
    ranges: Sequence[RangeAnalysis],
    sampling: Sampling | None,
    unusual: OutlierWindows,
) -> SampleComparisons:
    """Return what the samples of all ranges show; `timeline` has the ranks and clocks.

    `sampling` and `unusual` are of choose_steps.
    """
    parts = [each.results.pipelines for each in ranges]
    messages = pl.concat([each.messages for each in parts])
    samples = RunSamples([each.samples for each in parts], [each.links for each in parts], messages, sampling)
    return compare_samples(timeline, pipelines, samples, unusual)


def sum_causes_of(ranges: Sequence[RangeAnalysis], counted: Collection[int]) -> CauseSums:
    """Return what the culprits of the steps in the totals need of all ranges, one after the other."""
    long = _long_tables(ranges)
    names = ("iterations", "ledger_steps", "ledger_ranks", "ledger_origins")
    tables = [long[name].changed(lambda rows: rows.filter(_is_in(counted))) for name in names]
    members = united_rows(tables[0].parts(), ["pipeline", "rank"])
    parts = map(CausesOfSteps, *(each.parts() for each in tables))
    return sum_causes(parts, members)


def joined_pieces(
    ranges: Sequence[RangeAnalysis], counted: Collection[int]
) -> dict[str, Callable[[], Iterator[pl.DataFrame]]]:
    """Return `pieces` of the report of all ranges, of which `counted` are the steps in the totals."""
    return _pieces(_long_tables(ranges), _is_in(counted))


def _is_in(steps: Collection[int]) -> pl.Expr:
    return pl.col("step").is_in(list(steps))


def _long_tables(ranges: Sequence[RangeAnalysis]) -> dict[str, LongTable]:
    """Return the tables of all ranges, by their names in RangeAnalysis and its results."""
    orders = OF_RUN | {f"ledger_{name}": order for name, order in OF_LEDGER.items()}
    long = {
        name: LongTable([partial(_table, each, name) for each in ranges], order)
        for name, order in orders.items()
    }
    long["critical_path"] = long["critical_path"].changed(lambda rows: rows.with_columns(**NO_PLACES))
    long["phases"] = LongTable([partial(_phases, each) for each in ranges], STEP_PHASES.order)
    overlap = LongTable([partial(_overlap, each) for each in ranges], OVERLAP.order)
    lateness = LongTable([partial(_lateness, each) for each in ranges], LATENESS.order)
    return long | {"overlap": _with_known_zeros(overlap), "lateness": lateness}


def _table(each: RangeAnalysis, name: str) -> pl.LazyFrame:
    return each.tables[name].lazy()


def _phases(each: RangeAnalysis) -> pl.LazyFrame:
    return each.results.pipelines.phases.lazy()


def _overlap(each: RangeAnalysis) -> pl.LazyFrame:
    return each.results.pipelines.waits.overlap.lazy()


def _lateness(each: RangeAnalysis) -> pl.LazyFrame:
    return each.results.outside.lateness.lazy()


def _pieces(
    long: Mapping[str, LongTable], chosen: pl.Expr
) -> dict[str, Callable[[], Iterator[pl.DataFrame]]]:
    """Return functions that yield the tables to save with rows for every rank and step, in pieces; see Report."""
    names = {f"ledger.{name}": f"ledger_{name}" for name in OF_LEDGER if name not in WHOLE}
    names |= {f"explanation.{name}": name for name in ("iterations", "phases", "overlap", "critical_path")}
    return {
        saved: long[name].changed(lambda rows: rows.filter(chosen)).pieces for saved, name in names.items()
    } | {f"ledger.{name}": long[f"ledger_{name}"].pieces for name in WHOLE}


def _of_report(
    known: Intermediates, long: Mapping[str, LongTable]
) -> dict[str, Callable[[], Iterator[pl.DataFrame]]]:
    """Return what yields the tables LEDGER and, unless iterations have several steps, ITERATIONS of the report."""

    def pieces(table: LongTable) -> Iterator[pl.DataFrame]:
        empty = empty_columns(table.parts(), known.unrecorded)
        return table.changed(lambda rows: without_columns(rows, empty)).pieces()

    names = {"ledger": "ledger_steps"}
    if known.accumulation.steps_per_iteration == 1:
        names["iterations"] = "iterations"
    return {saved: partial(pieces, long[name]) for saved, name in names.items()}


def _joined(
    surveyed: Intermediates,
    reference: Reference,
    ranges: Sequence[RangeAnalysis],
    long: Mapping[str, LongTable],
) -> Intermediates:
    """Return the intermediate results of the run."""
    of_survey = [name for name in PipelineSurvey._fields[2:] if name not in OF_STEPS]
    measured = {name: getattr(surveyed, name) for name in of_survey}
    later = _of_reference(reference.results)
    sample = with_later(_sample_of(surveyed, reference), later)
    recorded = join_recorded_causes(each.recorded for each in ranges)
    contradictions = TableParts(ranges, lambda each: _table(each, "contradictions").collect())
    ranks = surveyed.windows.pipelines["rank"]
    judged = judge_timestamps(surveyed.timeline, contradictions, ranks)
    actions = lazily(
        Actions,
        {
            "has_transfers": recorded.has_transfers,
            "diagnostics": (*_added(note for each in ranges for note in each.of_actions), *judged),
        },
        {name: partial(_field, later["actions"], name) for name in OF_ACTIONS}
        | {"contradictions": in_parts(contradictions)},
        is_kept=False,
    )
    tables = {name: long[f"ledger_{name}"].in_parts for name in OF_LEDGER}
    of_actions: dict[str, Callable[[], object]] = {
        name: partial(_field, later["ledger"], name) for name in ("classes", "delays")
    }
    ledger = lazily(
        Ledger,
        {"diagnostics": _added(note for each in ranges for note in each.of_ledger)},
        of_actions | tables,
        is_kept=False,
    )
    # What is settled between steps, and named there, is only needed to divide the iterations of a range.
    between = BetweenSteps(
        pl.concat([_table(each, "between") for each in ranges]).collect(), *NOTHING_BETWEEN
    )
    known = Intermediates(surveyed.timeline, surveyed.windows).with_results(
        **{name: long[name].rows() for name in KEPT},
        **measured,
        own_sample=sample,
        actions=actions,
        ledger=ledger,
        between_steps=between,
        transfers=add_transfers(each.transfers for each in ranges),
        unrecorded=unrecorded_columns(surveyed.timeline, recorded),
    )
    of_steps = {
        name: InParts(partial(getattr, surveyed, name), partial(_parts_of, surveyed, name))
        for name in OF_STEPS
    }
    return with_later(known, of_steps | {name: long[name].in_parts for name in OF_RUN if name not in KEPT})


def _sample_of(surveyed: Intermediates, reference: Reference) -> Intermediates:
    """Return what is known of the sample of the run without its results."""
    windows = with_known(surveyed.windows, pipelines=reference.pipelines)
    sample = Intermediates(surveyed.timeline, windows, None, reference.steps)
    known = {"missing": surveyed.missing, "sample_ratio": reference.ratio}
    if reference.others is not None:
        known["others"] = OtherPipelines(reference.others, surveyed.windows)
    return sample.with_results(**known)


def _of_reference(load: Callable[[], Mapping[str, object]]) -> dict[str, Callable[[], object]]:
    """Return functions that return results of the reference, all of which are loaded when the first one is used."""
    results = cache(load)
    return {name: partial(_item, results, name) for name in RESULTS}


def _item(results: Callable[[], Mapping[str, object]], name: str) -> object:
    return results()[name]


def _field(of: Callable[[], object], name: str) -> object:
    return getattr(of(), name)


def _join_results(measured: MeasuredRun, lateness: Lateness) -> JoinedResults:
    """Return the results of all ranges, without phases and overlap: explanations take these from files."""
    parts = [each.results.pipelines for each in measured.ranges]
    outside = [each.results.outside for each in measured.ranges]
    waits = join_waits([each.waits for each in parts], OVERLAP.empty())
    pipelines = PipelineResults(
        samples=NO_SAMPLES,
        links=NO_LINKS,
        messages=pl.DataFrame(),
        reduction_waits=pl.DataFrame(),
        phases=STEP_PHASES.empty(),
        other_work=reduced((each.other_work for each in parts), sum_other_work),
        waits=waits._replace(outliers=waits.outliers.with_columns(**NO_ROW)),
    )
    of_outside = OutsideResults(
        own_work=reduced((each.own_work for each in outside), sum_own_work),
        activity=add_outside_activity(each.activity for each in outside),
        pauses=pl.DataFrame(),
        lateness=pl.DataFrame(),
    )
    return JoinedResults(
        StepResults(pipelines, of_outside),
        measured.compare,
        TableParts(parts, lambda each: each.reduction_waits),
        TableParts(outside, lambda each: each.pauses),
        lateness,
        measured.counters,
    )


def _with_known_zeros(overlap: LongTable) -> LongTable:
    """Return overlaps in which a time is null only if it was recorded nowhere in the run: elsewhere there was none."""

    @cache
    def recorded() -> set[str]:
        return {
            name
            for rows in overlap.parts()
            for name in rows.columns
            if name.endswith("_ns") and rows[name].null_count() < rows.height
        }

    return overlap.changed(
        lambda rows: rows.with_columns(pl.col(*recorded()).fill_null(0)) if recorded() else rows
    )


def _added(notes: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return diagnostics with one row per code and rank: the first one, with the sum of all counts."""
    alike: dict[tuple[object, ...], list[Diagnostic]] = defaultdict(list)
    for note in notes:
        if note.code not in JUDGED:
            alike[note.code, note.severity, note.rank].append(note)
    return tuple(map(first_of_alike, alike.values()))
