"""What was understood of a trace whose actions were mapped or inferred: numbers that a reader can check at a glance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from stagescope.model import Timeline

MAPPED = "trace.mapped"
UNUSED = ("trace.unmapped", "spans.reversed")
"""Codes of diagnostics that count slices of a mapped trace that are not used."""

INTERPRETED = (MAPPED, "actions.assumed_names", "actions.inferred")
"""Codes of diagnostics by which the actions of a run are an interpretation of a trace."""

LONGEST = 60
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Numbers:
    """The different values of one column of the actions.

    `count` values, written as ranges in `values`, and `unknown` actions without one. Without any value, `count` is
    null, not 0: nothing is known of the column.
    """

    count: int | None
    values: str | None
    unknown: int

    @property
    def text(self) -> str:
        """The values as one line."""
        if self.count is None:
            return UNKNOWN
        return f"{self.count:,} ({self.values})" + (
            f"; {self.unknown:,} actions without one" if self.unknown else ""
        )


@dataclass(frozen=True)
class Understood:
    """What the actions of a mapped or inferred trace are, and how many of its slices are used.

    `actions_per_step` are the least and the most actions of a step, null where no action has a step. `slices_used` of
    `slices` are read as spans, both null where actions were inferred without a mapping; `mappings` are one sentence
    about each of them.
    """

    ranks: Numbers
    stages: Numbers
    microbatches: Numbers
    steps: Numbers
    actions_per_step: tuple[int, int] | None
    slices_used: int | None
    slices: int | None
    mappings: tuple[str, ...]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The names and texts of the rows, as every front end shows them."""
        least, most = self.actions_per_step or (None, None)
        per_step = UNKNOWN if least is None else f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return [
            ("ranks", self.ranks.text),
            ("stages", self.stages.text),
            ("micro-batches", self.microbatches.text),
            ("steps", self.steps.text),
            ("actions per step", per_step),
            *(("slices", text) for text in self.mappings),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the same as plain data."""
        return asdict(self) | {"actions_per_step": list(self.actions_per_step or ()) or None}


def understood(timeline: Timeline) -> Understood | None:
    """Return what was understood of a trace; None for a run whose recording states its actions."""
    noted = timeline.diagnostics
    if not noted["code"].is_in(INTERPRETED).any():
        return None
    actions = timeline.spans.filter(pl.col("kind").is_in(ACTION_KINDS))
    counts = actions.drop_nulls("step").group_by("step").len()["len"].sort().to_list()
    mapped = noted.filter(pl.col("code") == MAPPED)
    used = int(mapped["count"].sum()) if mapped.height else None
    unused = int(noted.filter(pl.col("code").is_in(UNUSED))["count"].sum())
    return Understood(
        _numbers(actions["rank"]),
        _numbers(actions["stage"]),
        _numbers(actions["microbatch"]),
        _numbers(actions["step"]),
        (counts[0], counts[-1]) if counts else None,
        used,
        None if used is None else used + unused,
        tuple(mapped["message"]),
    )


def _numbers(values: pl.Series) -> Numbers:
    known = values.drop_nulls().unique().sort().to_list()
    if not known:
        return Numbers(None, None, values.null_count())
    ranges = compact_ranges(known)
    shown = ranges if len(ranges) <= LONGEST else f"{known[0]} to {known[-1]}, with gaps"
    return Numbers(len(known), shown, values.null_count())
