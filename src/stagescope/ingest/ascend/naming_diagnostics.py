"""Diagnostics of naming: faults of the marks, counted per rank."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.ascend.plan_matching import MAX_EDIT_FRACTION, expected
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagescope.ingest.ascend.plan_matching import FittedPlan, MarkSequence
    from stagescope.schedules.recognition.matching import Match


class _Finding(NamedTuple):
    code: str
    severity: str
    text: str


MISSING = _Finding(
    "actions.missing",
    "error",
    "marks of actions that {schedule} has are missing; the other actions keep their names",
)
SURPLUS = _Finding(
    "marks.surplus",
    "warning",
    "marks that {schedule} does not have, such as an empty WeightGradStore.pop, get no number",
)
AMBIGUOUS = _Finding(
    "actions.ambiguous",
    "warning",
    "actions next to missing ones match several micro-batches; they get no number",
)
MISMATCH = _Finding(
    "schedule.mismatch",
    "warning",
    "marks are in steps that differ from {schedule} by more than {most:.0%}; they get no number",
)
OUTSIDE_STEPS = _Finding(
    "actions.outside_steps",
    "info",
    "actions outside every step are named as separate passes, without a step number",
)


def diagnose_naming(
    grouped: pl.DataFrame,
    fitted: FittedPlan,
    sequences: Mapping[int, MarkSequence],
    matches: Mapping[int, Match | None],
) -> Iterator[Diagnostic]:
    """Yield a diagnostic per rank and finding, with the location of the first one."""
    counts: dict[tuple[int, _Finding], int] = defaultdict(int)
    first: dict[tuple[int, _Finding], str] = {}
    groups = grouped.group_by("group", maintain_order=True).agg(pl.first("rank", "step"))
    has_steps = groups["step"].null_count() < groups.height
    for group, rank, step in groups.iter_rows():
        for finding, count, where in _findings(sequences[group], matches[group], fitted):
            counts[rank, finding] += count
            first.setdefault((rank, finding), _place(step, where))
        if has_steps and step is None and matches[group]:
            counts[rank, OUTSIDE_STEPS] += len(sequences[group].keys)
    # Without step numbers all groups are in step 0.
    if groups["step"].n_unique() == 1:
        yield from _uneven_passes(sequences, matches, fitted)
    keys = {"schedule": fitted.plan.schedule, "most": MAX_EDIT_FRACTION}
    for (rank, finding), count in counts.items():
        text = finding.text.format(**keys)
        location = first.get((rank, finding))
        yield Diagnostic(finding.severity, text, None, rank, location, count, code=finding.code)


def _findings(
    sequence: MarkSequence, found: Match | None, fitted: FittedPlan
) -> Iterator[tuple[_Finding, int, str]]:
    if found is None:
        yield MISMATCH, len(sequence.keys), ""
        return
    if found.lost:
        planned = expected(sequence, fitted.rows)[found.lost[0]]
        certain = (
            "" if found.ambiguous else "+".join(label(j.kind, j.stage, j.microbatch) for j in planned.parts)
        )
        yield MISSING, len(found.lost), certain
    if found.extra:
        yield SURPLUS, len(found.extra), sequence.keys[found.extra[0]].split(":")[0]
    if found.ambiguous:
        yield AMBIGUOUS, len(found.ambiguous), ""


def _uneven_passes(
    sequences: Mapping[int, MarkSequence], matches: Mapping[int, Match | None], fitted: FittedPlan
) -> Iterator[Diagnostic]:
    """Yield a warning where no step numbers are recorded and the ranks ran different numbers of passes."""
    counts = {
        len(expected(sequence, fitted.rows)) // len(fitted.rows[sequence.pp])
        for group, sequence in sequences.items()
        if sequence.may_repeat and sequence.pp is not None and matches[group]
    }
    if len(counts) > 1:
        text = (
            f"no step numbers are recorded, and the ranks ran between {min(counts)} and {max(counts)} passes through "
            f"the schedule: one step number may mean different steps on different ranks"
        )
        yield Diagnostic("warning", text, code="steps.uneven_passes")


def _place(step: int | None, where: str) -> str:
    at = "outside every step" if step is None else f"step {step}"
    return f"first in {at}: {where}" if where else f"first in {at}"
