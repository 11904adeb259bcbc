"""The slowdown metrics of a report as a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.language import wrapped
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_SLOWDOWN = 1.005
"""Below this S, what contributes to it is noise."""


def slowdown_lines(slowdowns: pl.DataFrame, *, width: int = 80) -> list[str]:
    """Return the slowdown of a run and its largest parts as wrapped lines; `slowdowns` is the table SLOWDOWNS."""
    if slowdowns.is_empty():
        return []
    whole = slowdowns.row(by_predicate=pl.col("metric") == "S", named=True)
    step, ideal = (duration_text(round(whole[name])) for name in ("step_ns", "ideal_step_ns"))
    text = (
        f"Slowdown S = {whole['value']:.3f}: a step takes {step} without delays between operations, and {ideal} if "
        "every operation takes the usual time of its type"
    )
    if whole["value"] >= LEAST_SLOWDOWN:
        text += f" ({_largest(slowdowns)})"
    return [*wrapped(printable(f"{text}."), width), ""]


def _largest(slowdowns: pl.DataFrame) -> str:
    """Return the largest value of every metric."""
    parts = []
    for metric, label in (("S_t", "operation"), ("S_stage", "pp_rank"), ("S_dp", "dp_rank"), ("S_w", "rank")):
        rows = slowdowns.filter(pl.col("metric") == metric).sort(
            "value", descending=True, maintain_order=True
        )
        if rows.height > 1:
            parts.append(
                f"{metric} = {rows['value'][0]:.3f}, {_subject(metric, rows.row(0, named=True)[label])}"
            )
    known: Mapping[str, float] = dict(slowdowns.select("metric", "value").iter_rows())
    parts += [f"{name} = {known[name]:.2f}" for name in ("M_S", "M_W") if known.get(name) is not None]
    return "; ".join(parts)


def _subject(metric: str, value: object) -> str:
    nouns = {"S_t": "", "S_stage": "pipeline rank ", "S_dp": "replica ", "S_w": "rank "}
    return f"{nouns[metric]}{value}"
