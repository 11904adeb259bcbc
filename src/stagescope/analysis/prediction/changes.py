"""The changes that a prediction can assume: other costs, equal stages, free transfers, another schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.ratios import LARGEST_PERCENT_RATIO, comparative_text


@dataclass(frozen=True, kw_only=True)
class Slower:
    """Actions take `factor` times as long: all of them, or those of one stage, rank or kind.

    A factor of 1.5 is 50 % more time, 0.9 is 10 % less. Of several selectors all must match. Raises UsageError for a
    factor that is not a positive number and for an unknown kind.

    >>> str(Slower(factor=0.9, stage=3)), str(Slower(factor=12.0))
    ('stage 3 10 % faster', 'everything takes 12x as long')
    """

    factor: float
    stage: int | None = None
    rank: int | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.factor) or self.factor <= 0:
            raise UsageError.factor_not_positive(self.factor)
        if self.kind is not None and self.kind not in ACTION_KINDS:
            raise UsageError.change_kind_unknown(self.kind, ACTION_KINDS)

    @property
    def selectors(self) -> dict[str, int | str]:
        """The columns that select actions, with the value that they must have."""
        named = {"stage": self.stage, "rank": self.rank, "kind": self.kind}
        return {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        where = " ".join(f"{name} {value}" for name, value in self.selectors.items()) or "everything"
        if self.factor > LARGEST_PERCENT_RATIO:
            return f"{where} takes {comparative_text('longer', self.factor)}"
        percent = 100 * (self.factor - 1)
        return f"{where} {abs(percent):.3g} % {'slower' if percent > 0 else 'faster'}"


@dataclass(frozen=True)
class EqualStages:
    """Every stage costs the mean over the stages, kind by kind; the spread around the mean stays in proportion."""

    def __str__(self) -> str:
        return "all stages equal"


@dataclass(frozen=True)
class FreeTransfers:
    """Transfers take no time."""

    def __str__(self) -> str:
        return "transfers take no time"


@dataclass(frozen=True)
class OtherSchedule:
    """The actions run in the order of another schedule, with the measured mean costs of every stage."""

    name: str

    def __str__(self) -> str:
        return f"schedule {self.name}"


Change = Slower | EqualStages | FreeTransfers | OtherSchedule
CHANGES = (Slower, EqualStages, FreeTransfers, OtherSchedule)
Combination = tuple[Change, ...]
"""Changes that are made together."""


def combinations_of(changes: Change | Sequence[Change | Combination]) -> list[Combination]:
    """Return what is predicted, one combination per row: a change alone, or a tuple of changes made together.

    Raises TypeError for anything that is not a change: a str in particular, which is a sequence too, would otherwise
    be taken for a list of changes.

    >>> combinations_of([FreeTransfers(), (EqualStages(), OtherSchedule("zb-h1"))])
    [(FreeTransfers(),), (EqualStages(), OtherSchedule(name='zb-h1'))]
    """
    if isinstance(changes, CHANGES):
        return [(changes,)]
    if isinstance(changes, (str, bytes)) or not isinstance(changes, Sequence):
        raise TypeError(_expected(changes))
    combinations = [each if isinstance(each, tuple) else (each,) for each in changes]
    for change in (change for combination in combinations for change in combination):
        if not isinstance(change, CHANGES):
            raise TypeError(_expected(change))
    return combinations


def _expected(given: object) -> str:
    names = ", ".join(kind.__name__ for kind in CHANGES)
    return f"expected one change or several ({names}), got {given!r}"
