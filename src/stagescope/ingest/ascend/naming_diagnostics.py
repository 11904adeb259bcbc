"""What naming found wrong with the marks, per rank, in words and counts."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.ingest.ascend.placing import MOST_EDITS, expected
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.kinds import label

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stagescope.ingest.ascend.placing import Fitted, Look
    from stagescope.schedules.recognition.matching import Match


class _Finding(NamedTuple):
    severity: str
    text: str


LOST = _Finding(
    "error", "marks of actions that {schedule} has are missing; the other actions keep their names"
)
EXTRA = _Finding(
    "warning", "marks that {schedule} does not have, such as an empty WeightGradStore.pop, have no number"
)
AMBIGUOUS = _Finding(
    "warning", "actions beside lost ones could be several micro-batches; they have no number"
)
STRANGE = _Finding("warning", "marks are of steps that differ from {schedule} by more than {most:.0%}; "
                              "they have no number")  # fmt: skip
UNTOLD = _Finding(
    "info", "actions outside every step are named as passes of their own, without a step number"
)


def what_was_wrong(
    grouped: pl.DataFrame, fitted: Fitted, looks: Mapping[int, Look], matches: Mapping[int, Match | None]
) -> Iterator[Diagnostic]:
    """Yield a diagnostic per rank and sort of fault, with the first place where it was found."""
    counts: dict[tuple[int, _Finding], int] = defaultdict(int)
    first: dict[tuple[int, _Finding], str] = {}
    groups = grouped.group_by("group", maintain_order=True).agg(pl.first("rank", "step"))
    untold = groups["step"].null_count() < groups.height
    for group, rank, step in groups.iter_rows():
        for finding, count, where in _findings(looks[group], matches[group], fitted):
            counts[rank, finding] += count
            first.setdefault((rank, finding), _place(step, where))
        if untold and step is None and matches[group]:
            counts[rank, UNTOLD] += len(looks[group].words)
    if groups["step"].n_unique() == 1:
        yield from _uneven_passes(looks, matches, fitted)
    words = {"schedule": fitted.plan.schedule, "most": MOST_EDITS}
    for (rank, finding), count in counts.items():
        text = finding.text.format(**words)
        yield Diagnostic(finding.severity, text, None, rank, first.get((rank, finding)), count)


def _findings(look: Look, found: Match | None, fitted: Fitted) -> Iterator[tuple[_Finding, int, str]]:
    if found is None:
        yield STRANGE, len(look.words), ""
        return
    if found.lost:
        due = expected(look, fitted.rows)[found.lost[0]]
        certain = "" if found.ambiguous else "+".join(label(j.kind, j.stage, j.microbatch) for j in due.parts)
        yield LOST, len(found.lost), certain
    if found.extra:
        yield EXTRA, len(found.extra), look.words[found.extra[0]].split(":")[0]
    if found.ambiguous:
        yield AMBIGUOUS, len(found.ambiguous), ""


def _uneven_passes(
    looks: Mapping[int, Look], matches: Mapping[int, Match | None], fitted: Fitted
) -> Iterator[Diagnostic]:
    """Yield a warning where nothing tells steps apart and the ranks did not run as many passes."""
    counts = {
        len(expected(look, fitted.rows)) // len(fitted.rows[look.pp])
        for group, look in looks.items()
        if look.may_repeat and look.pp is not None and matches[group]
    }
    if len(counts) > 1:
        text = (
            f"nothing tells steps apart, and the ranks ran between {min(counts)} and {max(counts)} passes through the "
            f"schedule: the same step number may not be the same step on all of them"
        )
        yield Diagnostic("warning", text)


def _place(step: int | None, where: str) -> str:
    at = "outside every step" if step is None else f"step {step}"
    return f"first in {at}: {where}" if where else f"first in {at}"
