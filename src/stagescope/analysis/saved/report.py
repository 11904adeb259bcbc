"""The tables of a report by name, and a report from its facts and a function that loads them."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.explanation import Explanation
from stagescope.analysis.idle.ledger import Ledger
from stagescope.analysis.intermediates import Intermediates, intermediates_of
from stagescope.analysis.iteration.outside_culprits import OutsideCulprits
from stagescope.analysis.prediction.ideal import Ideal
from stagescope.analysis.report import Report
from stagescope.analysis.saved.facts import bubble_of
from stagescope.analysis.statistics.outlier_patterns import OutlierPattern
from stagescope.analysis.statistics.replicas import Replicas
from stagescope.analysis.statistics.step_trend import StepTrends
from stagescope.analysis.statistics.stragglers import Stragglers
from stagescope.model.lazy import lazily

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

    from stagescope.analysis.saved.facts import ExplanationFacts, ReportFacts
    from stagescope.model import Timeline

    Load = Callable[[str], pl.DataFrame]

FIELDS = ("steps", "ranks")
"""Tables of a Report that are always computed."""

COMPUTED = (
    "step_lengths", "ledger", "iterations", "losses", "step_losses", "culprits", "findings", "collective_kinds",
    "collective_ranks", "latest_collectives", "slowdowns", "kernel_communication", "kernel_communication_kinds",
    "memory", "data", "transfers",
)  # fmt: skip
"""Tables that a Report computes on first use. Those with a row per action or collective are computed again."""

EXPLAINED = (
    "late_ranks", "outliers", "idle", "iterations", "losses", "phases", "stage_costs", "stage_work",
    "overlap", "other_work", "pauses", "improvements", "critical_path",
)  # fmt: skip
"""Tables of an Explanation."""

PARTS: dict[str, tuple[str, ...]] = {
    "ledger": ("steps", "ranks", "losses", "origins", "orders"),
    "outside_culprits": ("named", "met", "groups"),
    "ideal": ("actions", "ranks"),
    "stragglers": ("table", "changing", "stage_work"),
    "trends": ("trends", "outliers"),
    "replicas": ("table", "steps"),
}
"""Parts of an Explanation with tables of their own."""


KINDS: dict[str, type] = {
    "ledger": Ledger, "stragglers": Stragglers, "trends": StepTrends, "replicas": Replicas
}  # fmt: skip
"""Those that have diagnostics of their own."""


class SavedParts(NamedTuple):
    """What a report is restored from: its facts, a function that loads a table by name, and the run."""

    facts: ReportFacts
    load: Load
    timeline: Timeline


def saved_tables(report: Report) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the tables to save of a report with explanation, by name. Each is computed when its turn comes."""
    for name, load in _tables(report):
        yield name, load()


def _tables(report: Report) -> Iterator[tuple[str, Callable[[], pl.DataFrame]]]:
    """Yield functions that return these tables."""
    explanation = report.explanation
    if explanation is None:
        raise TypeError("a report without explanation is not saved")
    for name in (*FIELDS, *COMPUTED):
        yield name, partial(getattr, report, name)
    for name in EXPLAINED:
        yield f"explanation.{name}", partial(getattr, explanation, name)
    yield "explanation.outlier_pattern", partial(getattr, explanation.outlier_pattern, "rows")
    for part, names in PARTS.items():
        for name in names:
            yield f"{part}.{name}", partial(getattr, getattr(explanation, part), name)


def saved_pieces(report: Report) -> Iterator[tuple[str, Iterator[pl.DataFrame]]]:
    """Yield the same tables in pieces, at least one each; tables that are larger than memory are never there whole."""
    for name, load in _tables(report):
        yield name, report.pieces[name]() if name in report.pieces else _whole(load)


def _whole(load: Callable[[], pl.DataFrame]) -> Iterator[pl.DataFrame]:
    yield load()


def restore_report(parts: SavedParts) -> Report:
    """Return a saved report, whose tables are loaded when they are used.

    What was not saved, such as the critical path of all steps, is computed from the timeline, as in the first report.
    """
    facts, load, timeline = parts
    intermediates = _intermediates(timeline)
    return Report(
        steps=load("steps"),
        ranks=load("ranks"),
        bubble=bubble_of(facts, "window"),
        diagnostics=facts.diagnostics,
        timeline=timeline,
        intermediates=intermediates,
        schedule=facts.schedule,
        microbatches=facts.microbatches,
        unaligned=facts.unaligned,
        in_cost_units=facts.in_cost_units,
        explanation=_restore_explanation(facts.explanation, load, intermediates),
        verdict=facts.verdict,
        saved={name: partial(load, name) for name in COMPUTED},
    )


def _intermediates(timeline: Timeline) -> Intermediates:
    """Return the intermediate results of a timeline, whose spans are only read if one of them is used."""
    found = cache(lambda: intermediates_of(timeline))
    names = tuple(Intermediates.__dataclass_fields__)
    return lazily(Intermediates, {}, {name: partial(_field, found, name) for name in names})


def _field(found: Callable[[], object], name: str) -> object:
    return getattr(found(), name)


def _restore_explanation(facts: ExplanationFacts, load: Load, intermediates: Intermediates) -> Explanation:
    error, degrees = (math.nan if value is None else value for value in facts.rank_error)
    later = {name: partial(load, f"explanation.{name}") for name in EXPLAINED}
    known = {
        "lost_time": facts.lost_time,
        "clock_notes": facts.clock_notes,
        "lengths_note": facts.lengths_note,
        "unrecorded": frozenset(facts.unrecorded),
        "steps_per_iteration": facts.steps_per_iteration,
        "tested": facts.tested,
        "waits_inside": facts.waits_inside,
        "diagnostics": facts.diagnostics,
        "outlier_pattern": OutlierPattern(load("explanation.outlier_pattern"), facts.outlier_pattern),
        "ideal": _restored_ideal(facts, load),
        "outside_culprits": lazily(OutsideCulprits, {}, _loading("outside_culprits", load)),
    }
    beside: dict[str, dict[str, object]] = {"stragglers": {"rank_error": (error, degrees)}}
    recomputed: dict[str, Callable[[], object]] = {
        name: partial(_of_ledger, intermediates, name) for name in ("classes", "delays")
    }
    for part, kind in KINDS.items():
        own: dict[str, Callable[[], object]] = {**_loading(part, load)}
        facts_of_part = {"diagnostics": facts.diagnostics_of[part], **beside.get(part, {})}
        known[part] = lazily(kind, facts_of_part, own | (recomputed if kind is Ledger else {}))
    return lazily(Explanation, known, later)


def _of_ledger(intermediates: Intermediates, name: str) -> object:
    return getattr(intermediates.sample.ledger, name)


def _restored_ideal(facts: ExplanationFacts, load: Load) -> Ideal:
    known = {field.name: getattr(facts.ideal, field.name) for field in fields(facts.ideal)}
    return lazily(Ideal, known, _loading("ideal", load))


def _loading(part: str, load: Load) -> dict[str, Callable[[], pl.DataFrame]]:
    """Return functions that load the tables of a part by name."""
    return {name: partial(load, f"{part}.{name}") for name in PARTS[part]}
