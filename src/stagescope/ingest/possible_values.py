"""Ranks, steps, stages and sizes that no run has: negative ones, and places beyond the limit on the number of ranks.

They would become rows and columns of their own in every table and chart. An impossible value is replaced by null, and
a span of an impossible rank is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.implied import COORDINATES
from stagescope.vocabulary.limits import limit, limit_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.model import Timeline

MAX_VALUE = 2.0**62

NUMBERS = ("step", "pair", "bytes")
PLACES = ("stage", "chunk", "peer")
"""Places in a run: none has more stages, chunks or coordinates than the limit on ranks."""

LIMIT_OF = {"microbatch": "microbatch-number"}
"""The limit of a column; that of all places is ``ranks``."""


def with_possible_values(timeline: Timeline) -> Timeline:
    """Return the timeline without impossible ranks, steps, stages and sizes, which diagnostics count."""
    timeline, of_ranks = _without_impossible_ranks(timeline)
    spans, of_spans = _possible(timeline, timeline.spans, (*NUMBERS, *LIMIT_OF, *PLACES))
    ranks, of_places = _possible(timeline, timeline.ranks, COORDINATES)
    counters, of_counters = _possible_counters(timeline)
    steps = timeline.steps.filter(pl.col("step") >= 0)
    possible = replace(timeline, spans=spans, ranks=ranks, steps=steps, counters=counters)
    return possible.with_diagnostics([*of_ranks, *of_spans, *of_places, *of_counters])


def _possible_counters(timeline: Timeline) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the counters without values that are not numbers, or too large to be computed with as whole numbers."""
    is_number = pl.col("value").is_finite() & (pl.col("value").abs() < MAX_VALUE)
    counters = timeline.counters.filter(is_number)
    lost = timeline.counters.height - counters.height
    text = "values of counters are impossible and were dropped: expected numbers below 2**62"
    return counters, [Diagnostic("error", text, count=lost, code="values.impossible")] if lost else []


def _without_impossible_ranks(timeline: Timeline) -> tuple[Timeline, list[Diagnostic]]:
    is_right = _is_possible("rank")
    wrong = timeline.ranks.filter(~is_right)
    if wrong.is_empty():
        return timeline, []
    spans = timeline.spans.filter(is_right)
    text = f"spans of rank {wrong['rank'][0]} were dropped: {_expected('rank')}"
    count = max(1, timeline.spans.height - spans.height)
    note = Diagnostic("error", text, wrong["source"][0], count=count, code="values.impossible")
    tables = {
        name: getattr(timeline, name).filter(is_right) for name in ("ranks", "steps", "counters", "kernels")
    }
    return replace(timeline, spans=spans, **tables), [note]


def _possible(
    timeline: Timeline, table: pl.DataFrame, names: Sequence[str]
) -> tuple[pl.DataFrame, list[Diagnostic]]:
    """Return the table with null in place of impossible values, and one diagnostic per column and rank."""
    wrong_names = [name for name in names if table.select((~_is_possible(name)).any()).item()]
    notes: list[Diagnostic] = []
    sources = timeline.ranks.select("rank", "source")
    for name in wrong_names:
        wrong = table.filter(~_is_possible(name)).group_by("rank").agg(pl.len(), pl.first(name))
        for row in wrong.join(sources, on="rank", how="left").sort("rank").iter_rows(named=True):
            text = f"{name} {row[name]} is impossible and was ignored: {_expected(name)}"
            note = Diagnostic(
                "error", text, row["source"], row["rank"], count=row["len"], code="values.impossible"
            )
            notes.append(note)
    possible = [pl.when(_is_possible(name)).then(name).alias(name) for name in wrong_names]
    return table.with_columns(possible) if possible else table, notes


def _is_possible(name: str) -> pl.Expr:
    least = pl.col(name) >= 0
    return least if name in NUMBERS else least & (pl.col(name) < limit(LIMIT_OF.get(name, "ranks")))


def _expected(name: str) -> str:
    if name in NUMBERS:
        return "expected 0 or more"
    of = LIMIT_OF.get(name, "ranks")
    return f"expected 0 to less than {limit_text(of, limit(of))}, --limit {of}=N"
