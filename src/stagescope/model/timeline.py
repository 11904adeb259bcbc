"""The Timeline: what ran, whatever recorded it, as five declared tables on one clock."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic, diagnostics_table
from stagescope.model.tables import CLOCKS, DIAGNOSTICS, RANKS, SPANS, STEPS, TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Timeline:
    """Five tables, each as declared in model/tables.py; every change makes a new Timeline."""

    spans: pl.DataFrame
    ranks: pl.DataFrame
    steps: pl.DataFrame
    clocks: pl.DataFrame
    diagnostics: pl.DataFrame

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
        """Return the timeline of one step; spans that belong to no step are left out."""
        return replace(
            self,
            spans=self.spans.filter(pl.col("step") == step),
            steps=self.steps.filter(pl.col("step") == step),
        )


def empty_timeline() -> Timeline:
    """Return a Timeline without rows."""
    spans, ranks, steps, clocks, diagnostics = (table.empty() for table in TABLES)
    return Timeline(spans, ranks, steps, clocks, diagnostics)


__all__ = ["CLOCKS", "DIAGNOSTICS", "RANKS", "SPANS", "STEPS", "Timeline", "empty_timeline"]
