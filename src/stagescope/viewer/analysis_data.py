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
from stagescope.viewer.account_data import account_of
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.prediction.ideal import Ideal
    from stagescope.analysis.statistics.comparison import Comparison
    from stagescope.model import Timeline

PLACE = ("step", "rank", "row")
"""The columns of FINDINGS that state where a finding is seen."""


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
    it. Nor do runs whose timestamps contradict the order of the actions, or whose clocks are too uncertain. A simulated
    step is its own ideal and gets no other. The ledger has the lost time of the report.
    """
    verdict = {"verdict": _verdict(report), **_understood(report.timeline)}
    bubbles = report.intermediates.windows.bubbles
    actions = report.intermediates.actions
    if report.explanation is None or actions.table.is_empty() or actions.is_contradictory:
        return AnalysisLayers(bubbles=bubbles, steps=report.step_lengths, objects=verdict)
    is_theory = is_simulated(report.intermediates.timeline)
    ledger = account_of(report)
    return AnalysisLayers(
        idle=_explained_idle(report.idle, actions),
        critical_path=_path(report.critical_path),
        slack=report.slack.select("row", "slack_ns"),
        bubbles=bubbles,
        steps=report.step_lengths,
        ideal=None if is_theory else _ideal_spans(actions, report.explanation.ideal),
        objects={**verdict, **({"ledger": ledger} if ledger else {})},
    )


def saved_report_extras(report: Report) -> AnalysisLayers:
    """Return the layers of a saved report that need no spans: steps, verdict, findings and lost time.

    Findings refer to a step and a rank only, not to a span.
    """
    verdict = _verdict(report)
    if verdict:
        places = [name for name in PLACE if name != "row"]
        verdict["findings"] = [
            {"text": one["text"], **{name: one[name] for name in places}, "span": None}
            for one in verdict["findings"]
        ]
    ledger = account_of(report)
    objects = {"verdict": verdict, **({"ledger": ledger} if ledger else {})}
    return AnalysisLayers(steps=report.step_lengths, objects=objects)


def gather_compared_extras(timeline: Timeline, comparison: Comparison) -> AnalysisLayers:
    """Return the layers of a timeline, and the sentences of its comparison with an earlier run."""
    extras = gather_extras(timeline)
    return replace(extras, objects={**extras.objects, "comparison": comparison_words(comparison)})


def comparison_words(comparison: Comparison) -> dict[str, Any]:
    """Return the sentences of `stagescope compare` and its diagnostics, the section `comparison`."""
    return {
        "sentences": comparison_sentences(comparison),
        "diagnostics": [asdict(diagnostic) for diagnostic in comparison.diagnostics],
    }


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
    if intermediates.actions.table.is_empty() or intermediates.actions.is_contradictory:
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
    found = report.findings.select("evidence", *PLACE).to_dicts() if verdict.findings else []
    places = {row["evidence"]: row for row in found}
    findings = [
        {"text": text, **{name: places.get(text, {}).get(name) for name in PLACE}}
        for text in verdict.findings
    ]
    return {
        "why": why,
        "improvement": verdict.improvement,
        "tested": verdict.tested,
        "findings": findings,
    }


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


def _explained_idle(idle: pl.DataFrame, actions: Actions) -> pl.DataFrame:
    """Return all idle intervals with cause and culprit; a rank that is done waits for the last action of the step."""
    last = actions.table.group_by("pipeline", "step").agg(last=pl.col("row").sort_by("end_ns").last())
    is_done = pl.col("waiting_for").cast(pl.String) == "nothing"
    return idle.join(last, on=["pipeline", "step"], how="left", maintain_order="left").select(
        *("rank", "step", "start_ns", "end_ns"),
        pl.col("waiting_for").cast(pl.String),
        pl.when(is_done).then("last").otherwise("waits_for_row").alias("waits_for"),
        pl.lit(None, pl.String).alias("text"),
        pl.col("cause").cast(pl.String),
        pl.col("culprit_row").alias("culprit"),
    )


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
