"""Diagnostics: what was wrong or lost in the data, as rows that every front end shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.tables import DIAGNOSTICS
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Diagnostic:
    """One row of the diagnostics table; `code` is one of vocabulary/codes.py.

    The message is printable: it quotes names from files, which may hold escape sequences and line breaks.
    """

    severity: str
    message: str
    source: str | None = None
    rank: int | None = None
    location: str | None = None
    count: int = 1
    code: str = field(kw_only=True)

    def __post_init__(self) -> None:
        """Make the message one printable line."""
        object.__setattr__(self, "message", printable(self.message.replace("\n", " ")))


@dataclass(frozen=True)
class StepDiagnostic(Diagnostic):
    """A diagnostic whose message names something in a step: of several, in the first one."""

    step: int = field(kw_only=True)


def first_of_alike(notes: Iterable[Diagnostic]) -> Diagnostic:
    """Return the first one of diagnostics with the same meaning, with the sum of their counts."""
    alike = list(notes)
    first = min(alike, key=lambda note: note.step if isinstance(note, StepDiagnostic) else 0)
    return replace(first, count=sum(note.count for note in alike))


def diagnostics_table(rows: Iterable[Diagnostic]) -> pl.DataFrame:
    """Return diagnostics as the declared table."""
    return pl.DataFrame([asdict(row) for row in rows], schema=dict(DIAGNOSTICS.schema))
