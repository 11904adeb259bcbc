"""Diagnostics: what was wrong or lost in the data, as rows that every front end shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
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


def diagnostics_table(rows: Iterable[Diagnostic]) -> pl.DataFrame:
    """Return diagnostics as the declared table."""
    return pl.DataFrame([asdict(row) for row in rows], schema=dict(DIAGNOSTICS.schema))
