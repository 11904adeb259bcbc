"""The results of a report as the viewer and pictures show them: verdict, ledger, idle intervals, paths, ideal."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.analysis.intermediates import intermediates_of
from stagescope.analysis.report import build_explained_report
from stagescope.analysis.understood import understood
from stagescope.exporters.layers import AnalysisLayers
from stagescope.exporters.pictures.step_chart import typical_step
from stagescope.model.simulated import is_simulated
from stagescope.model.tables import SPANS
from stagescope.model.validate import conform
from stagescope.reports.comparison_sentences import comparison_sentences
from stagescope.vocabulary.causes import BY_COLUMN, Cause
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.analysis import Report
    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.lost_time import LostTime
    from stagescope.analysis.prediction.ideal import Ideal
    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.model import Timeline

COMPUTED = Cause("compute", "Compute inside the windows of the pipelines.")
"""The part of the time that is not lost, as a line among the causes."""

WAITS_OF_CAUSE: dict[str, tuple[str, ...]] = {
    "exposed_communication_ns": ("transfer",),
    "gradient_reduction_ns": ("reduction",),
    "data_parallel_wait_ns": ("reduction",),
    "launch_overhead_ns": ("launch",),
    "data_loading_ns": ("other_work",),
    "optimizer_ns": ("other_work",),
    "other_work_ns": ("other_work",),
    "unattributed_ns": ("launch", "other_work", "unknown"),
}
"""Parts of the ledger that consist of idle intervals with these waits, so that the picture can show them alone."""


def gather_extras(timeline: Timeline) -> AnalysisLayers:
    """Return the layers of a timeline, which is analyzed for them; empty without spans.

    A caller that has a report uses `report_extras`, so that nothing is analyzed twice.
    """
    if timeline.spans.is_empty():
        return AnalysisLayers()
    return report_extras(build_explained_report(timeline))


def report_extras(report: Report) -> AnalysisLayers:
    """Return the layers of a report for the viewer; the report computes each of its results once.

    Pipelines whose machines are not on one clock have neither idle intervals nor a critical path; the verdict states
    it. A simulated step is its own ideal and gets no other. The ledger has the lost time of the report.
    """
    verdict = {"verdict": _verdict(report), **_understood(report.timeline)}
    bubbles = report.intermediates.windows.bubbles
    actions = report.intermediates.actions
    if report.explanation is None or actions.table.is_empty():
        return AnalysisLayers(bubbles=bubbles, objects=verdict)
    is_theory = is_simulated(report.intermediates.timeline)
    ledger = _ledger(report.explanation.lost_time)
    return AnalysisLayers(
        idle=_idle(report.intermediates.idle_intervals),
        critical_path=_path(report.critical_path),
        slack=report.slack.select("row", "slack_ns"),
        bubbles=bubbles,
        ideal=None if is_theory else _ideal_spans(actions, report.explanation.ideal),
        objects={**verdict, **({"ledger": ledger} if ledger else {})},
    )


def gather_compared_extras(timeline: Timeline, comparison: Comparison) -> AnalysisLayers:
    """Return the layers of a timeline, and the sentences of its comparison with an earlier run."""
    extras = gather_extras(timeline)
    stated = {
        "sentences": comparison_sentences(comparison),
        "diagnostics": [asdict(diagnostic) for diagnostic in comparison.diagnostics],
    }
    return replace(extras, objects={**extras.objects, "comparison": stated})


def gather_layers(timeline: Timeline, step: int | None = None) -> AnalysisLayers:
    """Return the idle intervals and the critical path of one step, for a picture of it (None: the typical step).

    The step is analyzed alone, like the bubble that the picture states. A simulated step gets no layers: it is drawn
    like the figures of the papers.
    """
    step = typical_step(timeline) if step is None else step
    if step is None or is_simulated(timeline):
        return AnalysisLayers()
    shown = timeline.only_step(step)
    intermediates = intermediates_of(shown)
    if intermediates.actions.table.is_empty():
        return AnalysisLayers()
    in_step = (pl.col("step") == step).fill_null(value=False)
    rows = timeline.spans.select(in_step).to_series().arg_true()
    return AnalysisLayers(
        idle=_idle(intermediates.idle_intervals, rows), critical_path=_path(intermediates.critical_path, rows)
    )


def _verdict(report: Report) -> dict[str, Any]:
    verdict = report.verdict
    if verdict is None:
        return {}
    why = " ".join(filter(None, (verdict.why, verdict.slowest)))
    because = report.bubble.unknown_because
    if because and not why:
        why = f"The bubble is unknown: {because}."
    return {"why": why, "improvement": verdict.improvement, "findings": list(verdict.findings)}


def _understood(timeline: Timeline) -> dict[str, Any]:
    found = understood(timeline)
    return {} if found is None else {"understood": found.rows}


def _row(row: pl.Expr, rows: pl.Series | None) -> pl.Expr:
    """Return rows of the analyzed timeline as rows of the shown one; None: both are the same."""
    return row if rows is None else pl.lit(rows).gather(row)


def _path(critical_path: pl.DataFrame, rows: pl.Series | None = None) -> pl.DataFrame:
    """Return the actions of the critical paths as rows of the timeline."""
    on_path = critical_path.filter(pl.col("part") == "compute")
    return on_path.select(_row(pl.col("row"), rows).alias("row"))


def _idle(idle: pl.DataFrame, rows: pl.Series | None = None) -> pl.DataFrame:
    """Return all idle intervals except those after a rank's last action, which wait for nothing."""
    return idle.filter(pl.col("waiting_for").cast(pl.String) != "nothing").select(
        "rank",
        "step",
        "start_ns",
        "end_ns",
        pl.col("waiting_for").cast(pl.String),
        _row(pl.col("waits_for_row"), rows).alias("waits_for"),
        pl.lit(None, pl.String).alias("text"),
    )


def _ideal_spans(actions: Actions, ideal: Ideal) -> pl.DataFrame | None:
    """Return the actions of the ideal schedule as spans; None if the schedule is unknown."""
    laid = ideal.actions.filter(pl.col("ideal_start_ns").is_not_null())
    if laid.is_empty():
        return None
    facts = actions.table.select("action", "rank", "kind", "step", "stage", "chunk", "microbatch")
    spans = laid.join(facts, on="action").select(
        "rank",
        pl.lit(COMPUTE).alias("lane"),
        *("kind", "step", "stage", "chunk", "microbatch"),
        pl.col("ideal_start_ns").alias("start_ns"),
        pl.col("ideal_end_ns").alias("end_ns"),
    )
    return conform(spans, SPANS)


def _ledger(lost: LostTime | None) -> dict[str, Any] | None:
    """Return the lost time by cause with the values that texts show: per rank and step."""
    if lost is None:
        return None
    shown = lost.shown_ns()
    total_ns = lost.whole_ns // lost.rows
    # The rest, and not busy_ns // rows: the parts are rounded, and have to sum to the total.
    compute = _part(COMPUTED, total_ns - sum(ns or 0 for ns in shown.values()))
    causes = [_part(BY_COLUMN[name], ns, WAITS_OF_CAUSE.get(name, ())) for name, ns in shown.items()]
    return {"denominator": lost.denominator, "total_ns": total_ns, "parts": [compute, *causes]}


def _part(cause: Cause, ns: int | None, waits: Sequence[str] = ()) -> dict[str, Any]:
    meaning = cause.meaning
    return {"name": cause.name, "label": cause.label, "ns": ns, "meaning": meaning, "waits": list(waits)}
