"""The account of lost time for the page: by cause, and what each comes from, all with one denominator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.vocabulary.causes import BY_COLUMN, Cause

if TYPE_CHECKING:
    from stagescope.analysis import Report
    from stagescope.analysis.lost_time import LostTime

COMPUTED = Cause("compute", "Compute inside the windows of the pipelines.")
"""The part of the time that is not lost, as a line among the causes."""

MOST_ORIGINS = 6
"""Ranks or links that a cause lists; the others are one row together."""

ORIGIN = ("pipeline", "rank", "peer", "victim")


def account_of(report: Report) -> dict[str, Any] | None:
    """Return the lost time by cause with the values that texts show, per rank and step, and what each comes from.

    The parts sum to `total_ns`, and the origins of a part to the part. None if nothing was measured.
    """
    lost = report.explanation.lost_time if report.explanation else None
    if lost is None:
        return None
    shown = lost.shown_ns()
    total_ns = lost.whole_ns // lost.rows
    # The rest, and not busy_ns // rows: the parts are rounded, and have to sum to the total.
    compute_ns = total_ns - sum(ns or 0 for ns in shown.values())
    origins = _origins(report.culprits, lost)
    causes = [
        _part(BY_COLUMN[name], ns, origins.filter(pl.col("cause") == BY_COLUMN[name].name))
        | {"fraction": None if ns is None else lost.fraction(name)}
        for name, ns in shown.items()
    ]
    compute_fraction = 1 - sum(cause["fraction"] or 0.0 for cause in causes)
    return {
        "denominator": lost.denominator,
        "total_ns": total_ns,
        "parts": [
            {**_described(COMPUTED), "ns": compute_ns, "fraction": compute_fraction, "origins": []},
            *causes,
        ],
    }


def _described(cause: Cause) -> dict[str, str]:
    return {"name": cause.name, "label": cause.label, "meaning": cause.meaning}


def _origins(culprits: pl.DataFrame, lost: LostTime) -> pl.DataFrame:
    """Return cause, ORIGIN and ns per rank and step; what has no culprit is listed by the rank that is idle."""
    has_culprit = pl.col("culprit_pipeline").is_not_null()
    ranks = max(lost.rows // lost.iterations, 1)
    return (
        culprits.select(
            pl.col("cause").cast(pl.String),
            pl.when(pl.col("culprit_rank").is_null()).then("culprit_pipeline").alias("pipeline"),
            rank="culprit_rank",
            peer="culprit_peer",
            victim=pl.when(~has_culprit).then("victim_rank"),
            idle_ns="idle_ns",
        )
        .group_by("cause", *ORIGIN)
        .agg(ns=(pl.sum("idle_ns") / ranks).round().cast(pl.Int64))
        .sort("ns", *ORIGIN, descending=[True, *[False] * len(ORIGIN)], nulls_last=True)
    )


def _part(cause: Cause, ns: int | None, origins: pl.DataFrame) -> dict[str, Any]:
    """Return one cause with its largest origins, and a row without rank for everything else."""
    largest = origins.filter(pl.col("ns") > 0).head(MOST_ORIGINS).select(*ORIGIN, "ns").to_dicts()
    rest_ns = (ns or 0) - sum(each["ns"] for each in largest)
    rest = [{**dict.fromkeys(ORIGIN), "ns": rest_ns}] if largest and rest_ns else []
    return {**_described(cause), "ns": ns, "origins": [*largest, *rest]}
