"""What a saved report consists of besides its tables, as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from stagescope.analysis.bubble import DEFINITIONS, Bubble
from stagescope.analysis.lost_time import LostTime  # noqa: TC001 - facts are decoded with it
from stagescope.analysis.prediction.tried_changes import TriedChanges  # noqa: TC001 - facts are decoded with it
from stagescope.analysis.verdict import Verdict  # noqa: TC001 - facts are decoded with it
from stagescope.model.diagnostics import Diagnostic  # noqa: TC001 - facts are decoded with it

if TYPE_CHECKING:
    from stagescope.analysis.explanation import Explanation
    from stagescope.analysis.prediction.ideal import Ideal
    from stagescope.analysis.report import Report


@dataclass(frozen=True)
class BubbleFacts:
    """A Bubble under one definition."""

    fraction: float | None
    per_rank: dict[int, float]
    per_step: dict[int, float]
    steps: tuple[int, ...]
    idle_ns: int
    unknown_because: str


@dataclass(frozen=True)
class IdealFacts:
    """An Ideal without its tables."""

    schedule: str | None
    source: str | None
    evidence: str
    makespan_ns: int | None
    diagnostics: tuple[Diagnostic, ...]
    alternatives: tuple[str, ...]


@dataclass(frozen=True)
class ExplanationFacts:
    """An Explanation without its tables; `rank_error` has None for NaN, and `diagnostics_of` those of its parts."""

    lost_time: LostTime | None
    ideal: IdealFacts
    outlier_pattern: str
    rank_error: tuple[float | None, float | None]
    clock_notes: dict[int, str]
    lengths_note: str | None
    unrecorded: tuple[str, ...]
    steps_per_iteration: int
    tested: TriedChanges
    waits_inside: tuple[int, ...]
    diagnostics: tuple[Diagnostic, ...]
    diagnostics_of: dict[str, tuple[Diagnostic, ...]]


@dataclass(frozen=True)
class ReportFacts:
    """A Report without its tables; `bubbles` has those of all definitions."""

    schedule: str | None
    microbatches: int | None
    unaligned: tuple[int, ...]
    in_cost_units: bool
    bubbles: dict[str, BubbleFacts]
    diagnostics: tuple[Diagnostic, ...]
    verdict: Verdict
    explanation: ExplanationFacts


WITH_DIAGNOSTICS = ("ledger", "stragglers", "trends", "replicas")
"""Parts of an Explanation with diagnostics of their own."""


def facts_json(report: Report) -> bytes:
    """Return the facts of a report with explanation, as JSON."""
    if report.explanation is None or report.verdict is None:
        raise TypeError("a report without explanation is not saved")
    facts = ReportFacts(
        schedule=report.schedule,
        microbatches=report.microbatches,
        unaligned=tuple(report.unaligned),
        in_cost_units=report.in_cost_units,
        bubbles={name: _bubble_facts(report.bubble.of(name)) for name in DEFINITIONS},
        diagnostics=tuple(report.diagnostics),
        verdict=report.verdict,
        explanation=_explanation_facts(report.explanation),
    )
    return msgspec.json.encode(facts)


def parse_facts(content: bytes) -> ReportFacts:
    """Return the facts that `facts_json` made JSON of. Raises ValueError for anything else."""
    try:
        facts = msgspec.json.decode(content, type=ReportFacts)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if facts.bubbles.keys() != DEFINITIONS.keys():
        raise ValueError("it does not have all definitions of the bubble")
    if facts.explanation.diagnostics_of.keys() != set(WITH_DIAGNOSTICS):
        raise ValueError("it does not have the diagnostics of all parts")
    return facts


def bubble_of(facts: ReportFacts, name: str) -> Bubble:
    """Return the bubble of a report under a definition. Raises KeyError for an unknown one."""
    found = facts.bubbles[name]
    return Bubble(
        fraction=found.fraction,
        per_rank=found.per_rank,
        denominator=DEFINITIONS[name].denominator,
        steps=found.steps,
        name=name,
        per_step=found.per_step,
        idle_ns=found.idle_ns,
        unknown_because=found.unknown_because,
        measure=lambda other: bubble_of(facts, other),
    )


def _bubble_facts(bubble: Bubble) -> BubbleFacts:
    return BubbleFacts(
        bubble.fraction,
        bubble.per_rank,
        bubble.per_step,
        tuple(bubble.steps),
        bubble.idle_ns,
        bubble.unknown_because,
    )


def _ideal_facts(ideal: Ideal) -> IdealFacts:
    named = (ideal.schedule, ideal.source, ideal.evidence, ideal.makespan_ns)
    return IdealFacts(*named, tuple(ideal.diagnostics), tuple(ideal.alternatives))


def _explanation_facts(explanation: Explanation) -> ExplanationFacts:
    error, degrees = (
        None if math.isnan(value) else float(value) for value in explanation.stragglers.rank_error
    )
    return ExplanationFacts(
        lost_time=explanation.lost_time,
        ideal=_ideal_facts(explanation.ideal),
        outlier_pattern=explanation.outlier_pattern.text,
        rank_error=(error, degrees),
        clock_notes=explanation.clock_notes,
        lengths_note=explanation.lengths_note,
        unrecorded=tuple(sorted(explanation.unrecorded)),  # the same bytes in every process
        steps_per_iteration=explanation.steps_per_iteration,
        tested=explanation.tested._replace(
            untested={why: tuple(names) for why, names in explanation.tested.untested.items()}
        ),
        waits_inside=explanation.waits_inside,
        diagnostics=tuple(explanation.diagnostics),
        diagnostics_of={part: tuple(getattr(explanation, part).diagnostics) for part in WITH_DIAGNOSTICS},
    )
