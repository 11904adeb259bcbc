"""The Timeline: a run as seven declared tables on one clock, whatever recorded it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import polars as pl

from stagescope.model.diagnostics import diagnostics_table
from stagescope.model.implied import implied_ranks, implied_steps, joined_ranks, with_assumed_step
from stagescope.model.tables import CLOCKS, COUNTERS, DIAGNOSTICS, KERNELS, RANKS, SPANS, STEPS, TABLES
from stagescope.model.validate import conform
from stagescope.vocabulary.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stagescope.model.diagnostics import Diagnostic


class Alignment(Protocol):
    """How well the clocks of a run were aligned: the part of `clocks.ClockReport` that the model relies on.

    A protocol, because the model is below `clocks` and must not import it.
    """

    @property
    def worst_error_ns(self) -> int | None:
        """The largest guaranteed bound of a timestamp on an aligned clock; None where no two were aligned."""


@dataclass(frozen=True)
class Timeline:
    """Seven tables, each as declared in model/tables.py; every change makes a new Timeline.

    `alignment` is the report of clocks.align_clocks, and None for a timeline that was not aligned, such as a raw
    recording or a simulated schedule. `kernels` is empty unless they were asked for.
    """

    spans: pl.DataFrame
    ranks: pl.DataFrame
    steps: pl.DataFrame
    clocks: pl.DataFrame
    diagnostics: pl.DataFrame
    alignment: Alignment | None = None
    counters: pl.DataFrame = field(default_factory=COUNTERS.empty)
    kernels: pl.DataFrame = field(default_factory=KERNELS.empty)

    @classmethod
    def from_spans(
        cls, spans: pl.DataFrame, *, ranks: pl.DataFrame | None = None, steps: pl.DataFrame | None = None
    ) -> Timeline:
        """Return the Timeline of a spans table, with the ranks and steps that its rows imply.

        The columns are those of SPANS in model/tables.py, in any order; times are nanoseconds on one clock. Nullable
        columns may be absent, and columns that are not declared are ignored, except the coordinates ``pp``, ``dp``,
        ``tp``, ``cp`` and ``ep`` of the rank. Where no row has a step, all spans belong to step 0, and a diagnostic
        records that.

        `ranks` has columns of RANKS and only needs ``rank``; it is completed with the ranks and coordinates in `spans`.
        `steps` has the columns of STEPS; without it, a step of a rank reaches from its first start to its last end.

        Raises TableError, naming the column and the first wrong value, where a required column or value is missing or
        has the wrong type, if a rank has two values of a coordinate, or if there are no spans.

        >>> rows = {"rank": [0], "lane": ["compute"], "kind": ["forward"], "start_ns": [5], "end_ns": [9]}
        >>> Timeline.from_spans(pl.DataFrame(rows)).steps.row(0)
        (0, 0, 5, 9)
        """
        valid = conform(spans, SPANS)
        if valid.is_empty():
            raise TableError.no_rows(SPANS.name)
        valid, found = with_assumed_step(valid)
        implied = implied_ranks(spans)
        known_ranks = implied if ranks is None else joined_ranks(ranks, implied)
        known_steps = implied_steps(valid) if steps is None else conform(steps, STEPS)
        bare = cls(valid, known_ranks, known_steps, CLOCKS.empty(), DIAGNOSTICS.empty())
        return bare.with_diagnostics(found)

    def __repr__(self) -> str:
        # The default would print five data frames.
        sizes = f"{self.spans.height:,} spans, {self.ranks.height:,} ranks, {self.diagnostics.height:,} diagnostics"
        return f"Timeline({sizes})"

    @property
    def is_partial(self) -> bool:
        """Whether data are known to be missing: an error row in diagnostics."""
        return "error" in self.diagnostics["severity"]

    def with_spans(self, spans: pl.DataFrame) -> Timeline:
        """Return the same timeline with other spans."""
        return replace(self, spans=spans)

    def with_diagnostics(self, rows: Iterable[Diagnostic]) -> Timeline:
        """Return the same timeline with diagnostics added."""
        return replace(self, diagnostics=pl.concat([self.diagnostics, diagnostics_table(rows)]))

    def only_step(self, step: int) -> Timeline:
        """Return the timeline of one step, without the spans, counters and kernels of no step."""
        return replace(
            self,
            spans=self.spans.filter(pl.col("step") == step),
            steps=self.steps.filter(pl.col("step") == step),
            counters=self.counters.filter(pl.col("step") == step),
            kernels=self.kernels.filter(pl.col("step") == step),
        )


def empty_timeline() -> Timeline:
    """Return a Timeline without rows."""
    spans, ranks, steps, clocks, diagnostics, counters, kernels = (table.empty() for table in TABLES)
    return Timeline(spans, ranks, steps, clocks, diagnostics, counters=counters, kernels=kernels)


__all__ = [
    "CLOCKS",
    "COUNTERS",
    "DIAGNOSTICS",
    "KERNELS",
    "RANKS",
    "SPANS",
    "STEPS",
    "Timeline",
    "empty_timeline",
]
