"""The steps as the viewer reads them: where they are on the time axis, their length and bubble, and outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.model.bubbles import bubbles_of_steps

if TYPE_CHECKING:
    from stagescope.exporters.layers import AnalysisLayers


def step_lengths(bubbles: pl.DataFrame, extras: AnalysisLayers | None = None) -> pl.DataFrame:
    """Return step, window_ns, bubble_fraction, in_totals and excess_ns: of the report, or without one of the windows.

    Without a report no step is an outlier, and all are in the totals.
    """
    if extras is not None and extras.steps is not None:
        return extras.steps
    return lengths_without_report(bubbles_of_steps(bubbles))


def lengths_without_report(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the same, given the result of `bubbles_of_steps`."""
    return steps.with_columns(
        in_totals=pl.lit(True),
        excess_ns=pl.lit(None, pl.Float64),
    )


def viewer_steps(spans: pl.DataFrame, lengths: pl.DataFrame, base_ns: int) -> list[dict[str, Any]]:
    """Return `steps` of meta, sorted.

    `start` and `end` are those of the spans on the compute lane, if any: more than the window, whose length
    `window_ns` is, because they include the optimizer step.
    """
    of_step = spans.filter(pl.col("step").is_not_null())
    on_device = of_step.filter(pl.col("lane") == "compute")
    measured = lengths.select("step", "window_ns", "bubble_fraction", "in_totals", "excess_ns")
    return (
        (of_step if on_device.is_empty() else on_device)
        .group_by("step")
        .agg(
            start=pl.min("start_ns") - base_ns,
            end=pl.max_horizontal(pl.max("start_ns"), pl.max("end_ns")) - base_ns,
        )
        .join(measured, on="step", how="left")
        .sort("step")
        .to_dicts()
    )
