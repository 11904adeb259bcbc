"""Which entry of its rank's plan every mark is, group by group; a group is what one rank did in one step.

Groups that look the same are matched once: replicas and steps mostly do, so that the cost does not grow with them.
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

    from stagescope.ingest.ascend.plan import Due, Plan
    from stagescope.schedules.recognition.matching import Clues

MOST_EDITS = 0.2
"""The share of a step's marks that may be lost or extra; above it the marks are not those of the schedule."""

SAMPLED_MARKS = 20_000
"""Of the groups, the most frequent ones with as many marks together decide which plan fits."""


@dataclass(frozen=True)
class Look:
    """What a rank's marks of one group are, in order: its pipeline coordinate and the mark's words.

    `may_repeat` says whether nothing tells steps apart in it, so that it may be several passes.
    """

    pp: int | None
    words: tuple[str, ...]
    may_repeat: bool

    @cached_property
    def marks(self) -> list[Mark]:
        """The marks."""
        return [_mark(word) for word in self.words]


class Fitted(NamedTuple):
    """A plan, the marks of one pass per pipeline coordinate, and how far the samples are from it."""

    plan: Plan
    rows: dict[int, tuple[Due, ...]]
    edits: int
    marks: int

    @property
    def is_near(self) -> bool:
        """Whether the samples are those of this plan, some lost and extra marks aside."""
        return self.edits <= MOST_EDITS * self.marks


def word() -> pl.Expr:
    """Return each mark as one word: sort, chunk and micro-batch, where they are said."""
    said = [pl.col(name).cast(pl.String).fill_null("") for name in ("said_chunk", "said_microbatch")]
    return pl.concat_str("sort", *said, separator=":")


def _mark(text: str) -> Mark:
    sort, chunk, microbatch = text.split(":")
    return Mark(sort, int(chunk) if chunk else None, int(microbatch) if microbatch else None)


def find_looks(actions: pl.DataFrame) -> dict[int, Look]:
    """Return the look of every group; `actions` has group, pp, may_repeat and the word of every mark."""
    grouped = actions.group_by("group", maintain_order=True).agg(
        pl.first("pp"), "word", pl.first("may_repeat")
    )
    return {group: Look(pp, tuple(words), repeats) for group, pp, words, repeats in grouped.iter_rows()}


def fit_plan(looks: Iterable[Look], plans: Iterable[Plan]) -> Fitted | None:
    """Return the plan that the most frequent looks are nearest to; the first of equally near ones."""
    samples = list(sample(looks))
    best: Fitted | None = None
    for plan in plans:
        rows = plan.rows()
        if rows is None:
            continue
        edits = sum(times * _edits(look, rows) for look, times in samples)
        if best is None or edits < best.edits:
            best = Fitted(plan, rows, edits, sum(times * len(look.words) for look, times in samples))
        if not edits:
            break
    return best


def sample(looks: Iterable[Look]) -> Iterator[tuple[Look, int]]:
    """Yield the most frequent looks of ranks whose place is known, and how often each comes."""
    marks = 0
    for look, times in Counter(look for look in looks if look.pp is not None).most_common():
        yield look, times
        marks += len(look.words)
        if marks > SAMPLED_MARKS:
            return


def _edits(look: Look, rows: dict[int, tuple[Due, ...]]) -> int:
    found = place(look, rows)
    return len(look.words) if found is None else found.edits


def expected(look: Look, rows: dict[int, tuple[Due, ...]]) -> tuple[Due, ...]:
    """Return what a group should be: one pass, or as many as it is about long enough for where it may repeat."""
    row = () if look.pp is None else rows.get(look.pp, ())
    passes = round(len(look.words) / len(row)) if row and look.may_repeat else 1
    return row * max(passes, 1)


def place(look: Look, rows: dict[int, tuple[Due, ...]], clues: Clues | None = None) -> Match | None:
    """Return the entries that the marks of a group are, those of a second pass counted on; None where too few fit."""
    due = expected(look, rows)
    if not due:
        return None
    most_edits = int(MOST_EDITS * max(len(look.words), len(due)))
    return match(look.marks, [each.mark for each in due], most_edits=most_edits, clues=clues)
