"""Throughput and memory of a run in sentences, where counters were recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.ratios import change_text
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.analysis.statistics.comparison import Comparison

SCOPES = {"run": "", "pipeline": " per pipeline"}
"""Words for the scope of STEP_DATA."""

THREE_DIGITS = 100


def throughput_sentence(report: Report) -> str:
    """Return the data of the steps in the totals, per step and per second; empty if no data were counted."""
    data = report.data.filter(pl.col("step").is_in(list(report.bubble.steps)))
    if data.is_empty():
        return ""
    unit, scope = data["unit"][0], SCOPES[data["scope"][0]]
    size = f"{float(data['count'].sum()) / data.height:,.0f} {unit} per step{scope}"
    rate = report.throughput
    if rate is None:
        return f"The run had {size}."
    whole = counted(data["iteration_ns"].count(), "whole iteration")
    return f"Throughput: {_rate_text(rate)} {unit}/s over {whole}, with {size}."


def memory_sentence(report: Report) -> str:
    """Return the ranks with the most and the least device memory; empty if it was not recorded."""
    known = report.memory.drop_nulls("allocated_bytes").sort("allocated_bytes", "rank")
    if known.is_empty():
        return ""
    least, most = known.row(0, named=True), known.row(-1, named=True)
    reserved = most["reserved_bytes"]
    held = f" and {size_text(reserved)} reserved" if reserved is not None else ""
    text = (
        f"Device memory: rank {most['rank']} had at most {size_text(most['allocated_bytes'])} allocated{held}"
    )
    if known.height > 1:
        text += f", rank {least['rank']} the least with {size_text(least['allocated_bytes'])} allocated"
    return f"{text}."


def compared_throughput(comparison: Comparison) -> str:
    """Return the throughput of both runs as a sentence; empty unless both counted the same kind of data."""
    before, after = comparison.throughput
    if before is None or after is None or before[:2] != after[:2]:
        return ""
    unit, scope = before[0], SCOPES[before[1]]
    change = change_text(after[2] / before[2]) if before[2] else "unknown"
    rates = f"{_rate_text(before[2])} {unit}/s before, {_rate_text(after[2])} after"
    return f"Throughput{scope}: {rates} ({change})."


def _rate_text(rate: float) -> str:
    """Return a rate with at least three digits."""
    return f"{rate:,.0f}" if rate >= THREE_DIGITS else f"{rate:.3g}"
