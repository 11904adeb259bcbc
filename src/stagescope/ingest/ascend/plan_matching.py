"""Match every mark with an entry of its rank's plan, per group; a group is one rank's actions in one step.

Groups with the same marks are matched only once. Replicas and steps mostly repeat, so the cost does not grow with their
number.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.schedules.recognition.matching import Mark, Match, match

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.ingest.ascend.plan import Plan, PlannedMark
    from stagescope.schedules.recognition.matching import TimeEvidence

MAX_EDIT_FRACTION = 0.2
"""Maximum share of a step's marks that may be missing or surplus; above it the marks do not follow the schedule."""

SAMPLED_MARKS = 20_000
"""The most frequent groups, up to this many marks in total, determine which plan fits."""


@dataclass(frozen=True)
class MarkSequence:
    """The marks of one group, in order: the pipeline coordinate of the rank and the key of every mark.

    `may_repeat` is true where no step numbers are recorded, so that the group may contain several passes.
    """

    pp: int | None
    keys: tuple[str, ...]
    may_repeat: bool

    @cached_property
    def marks(self) -> list[Mark]:
        """The keys as marks of schedules/recognition/matching.py."""
        return [_mark(key) for key in self.keys]


class FittedPlan(NamedTuple):
    """A plan, the marks of one pass per pipeline coordinate, and the edits between it and the sampled groups."""

    plan: Plan
    rows: dict[int, tuple[PlannedMark, ...]]
    edits: int
    marks: int

    @property
    def is_near(self) -> bool:
        """Whether the sampled groups follow this plan, apart from some missing and surplus marks."""
        return self.edits <= MAX_EDIT_FRACTION * self.marks


def mark_key() -> pl.Expr:
    """Return an expression for each mark's key: "sort:chunk:microbatch", with the numbers empty where not recorded."""
    recorded = [
        pl.col(name).cast(pl.String).fill_null("") for name in ("recorded_chunk", "recorded_microbatch")
    ]
    return pl.concat_str("sort", *recorded, separator=":")


def _mark(text: str) -> Mark:
    sort, chunk, microbatch = text.split(":")
    return Mark(sort, int(chunk) if chunk else None, int(microbatch) if microbatch else None)


def find_sequences(actions: pl.DataFrame) -> dict[int, MarkSequence]:
    """Return the marks of every group; `actions` has group, pp, may_repeat and mark_key."""
    grouped = actions.group_by("group", maintain_order=True).agg(
        pl.first("pp"), "mark_key", pl.first("may_repeat")
    )
    return {group: MarkSequence(pp, tuple(keys), repeats) for group, pp, keys, repeats in grouped.iter_rows()}


def fit_plan(sequences: Iterable[MarkSequence], plans: Iterable[Plan]) -> FittedPlan | None:
    """Return the plan closest to the most frequent groups; the first of equally close ones."""
    samples = list(sample(sequences))
    best: FittedPlan | None = None
    for plan in plans:
        rows = plan.rows()
        if rows is None:
            continue
        edits = sum(times * _edits(sequence, rows) for sequence, times in samples)
        if best is None or edits < best.edits:
            best = FittedPlan(
                plan, rows, edits, sum(times * len(sequence.keys) for sequence, times in samples)
            )
        # An exact fit cannot be improved, and the most likely plan comes first.
        if not edits:
            break
    return best


def sample(sequences: Iterable[MarkSequence]) -> Iterator[tuple[MarkSequence, int]]:
    """Yield the most frequent sequences of ranks with known pipeline coordinate, and how often each occurs."""
    marks = 0
    for sequence, times in Counter(
        sequence for sequence in sequences if sequence.pp is not None
    ).most_common():
        yield sequence, times
        marks += len(sequence.keys)
        if marks > SAMPLED_MARKS:
            return


def _edits(sequence: MarkSequence, rows: dict[int, tuple[PlannedMark, ...]]) -> int:
    found = place(sequence, rows)
    return len(sequence.keys) if found is None else found.edits


def expected(sequence: MarkSequence, rows: dict[int, tuple[PlannedMark, ...]]) -> tuple[PlannedMark, ...]:
    """Return the planned marks of a group: one pass, or as many as fit its length if it may repeat."""
    row = () if sequence.pp is None else rows.get(sequence.pp, ())
    # Rounded, because some marks of the passes may be missing.
    passes = round(len(sequence.keys) / len(row)) if row and sequence.may_repeat else 1
    return row * max(passes, 1)


def place(
    sequence: MarkSequence, rows: dict[int, tuple[PlannedMark, ...]], clues: TimeEvidence | None = None
) -> Match | None:
    """Return the plan entry of every mark of a group, counted on across passes; None where too few marks match."""
    planned = expected(sequence, rows)
    if not planned:
        return None
    # The bound also limits the cost of matching: it grows with the number of edits.
    most_edits = int(MAX_EDIT_FRACTION * max(len(sequence.keys), len(planned)))
    return match(sequence.marks, [each.mark for each in planned], most_edits=most_edits, clues=clues)
