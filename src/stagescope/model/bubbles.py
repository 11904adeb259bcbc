"""The bubble: the fraction of its pipeline's window in which a rank does not compute.

Per pipeline and step, the window extends from the first start to the last end of any forward or backward action on
any of its ranks. A rank is busy while a compute span runs (the union, so an overlapped pair counts once) and idle in
the rest of the window; bubble fraction = idle / window. Other definitions
(analysis/bubble.py) give other values, so every output names its denominator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.coverage import covered_ns, unite, unite_computing
from stagescope.vocabulary.kinds import ACTION_KINDS, ALL_RECEIVES, ALL_SENDS, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Collection

DENOMINATOR = "window: first start to last end of the pipeline's forward and backward actions, per step"


def step_bubbles(spans: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step and rank with a pipeline action in it, sorted by step and rank.

    Columns: step, rank, pipeline, window_start_ns, window_end_ns, window_ns, busy_ns, idle_ns, receive_wait_ns and
    send_wait_ns (the union of the times in which the host was blocked on a receive or a send inside the window; a
    send blocks until its receiver takes part).

    Only actions on the compute lane define windows: an action known only by its launch on the host does not show when
    the device was idle. `pipelines` is the result of find_pipelines. Spans count by their time, whatever step they
    belong to: a rank that already computes for the next step is not idle.
    """
    windows = _windows(spans, pipelines)
    return windows.with_columns(
        busy_ns=covered_ns(windows, unite_computing(spans)),
        receive_wait_ns=covered_ns(windows, unite(_waits(spans, ALL_RECEIVES))),
        send_wait_ns=covered_ns(windows, unite(_waits(spans, ALL_SENDS))),
    ).select(
        "step",
        "rank",
        "pipeline",
        "window_start_ns",
        "window_end_ns",
        "window_ns",
        "busy_ns",
        (pl.col("window_ns") - pl.col("busy_ns")).alias("idle_ns"),
        "receive_wait_ns",
        "send_wait_ns",
    )


def bubbles_of_steps(bubbles: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step, sorted: start_ns and end_ns of all windows, the longest window, and the bubble.

    `bubbles` is what `step_bubbles` returns.
    """
    return bubbles_of_sums(sum_of_steps(of_windows(bubbles)))


def of_windows(bubbles: pl.DataFrame) -> pl.DataFrame:
    """Return what `sum_of_steps` needs of the result of `step_bubbles`."""
    return bubbles.select(
        "step",
        "window_ns",
        "idle_ns",
        start_ns="window_start_ns",
        end_ns="window_end_ns",
        windows_ns="window_ns",
    )


def sum_of_steps(windows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step: its extent, the longest window, and the sums over windows and idle time.

    `windows` is from `of_windows`, or what this function returned for some of them.
    """
    return windows.group_by("step").agg(
        pl.min("start_ns"), pl.max("end_ns"), pl.max("window_ns"), pl.sum("windows_ns", "idle_ns")
    )


def bubbles_of_sums(sums: pl.DataFrame) -> pl.DataFrame:
    """Return what `bubbles_of_steps` does, given the result of `sum_of_steps`."""
    fraction = bubble_fraction(pl.col("idle_ns"), pl.col("windows_ns"))
    return sums.select("step", "start_ns", "end_ns", "window_ns", fraction).sort("step")


def bubble_fraction(idle_ns: pl.Expr, window_ns: pl.Expr) -> pl.Expr:
    """Return idle time over window; a window without length has no bubble."""
    return pl.when(window_ns > 0).then(idle_ns / window_ns).otherwise(0.0).alias("bubble_fraction")


WAITS = {"receive_wait_ns": ALL_RECEIVES, "send_wait_ns": ALL_SENDS}
"""Columns of step_bubbles with waits, and the kinds of spans that have them."""


def recorded_waits(spans: pl.DataFrame) -> frozenset[str]:
    """Return the columns of WAITS of which at least one span has a wait."""
    has_wait = pl.col("wait_end_ns").is_not_null()
    recorded = spans.select(
        (pl.col("kind").is_in(kinds) & has_wait).any().alias(name) for name, kinds in WAITS.items()
    ).row(0, named=True)
    return frozenset(name for name, is_recorded in recorded.items() if is_recorded)


def unrecorded_waits(recorded: Collection[str]) -> dict[str, pl.Expr]:
    """Return null for the columns of WAITS that are not among the recorded ones: their time is unknown."""
    return {name: pl.lit(None, pl.Int64) for name in WAITS if name not in recorded}


def _waits(spans: pl.DataFrame, kinds: tuple[str, ...]) -> pl.DataFrame:
    """Return when each rank's host was blocked on transfers of some kinds."""
    waits = spans.lazy().filter(pl.col("kind").is_in(kinds))
    return waits.select("rank", start_ns="wait_start_ns", end_ns="wait_end_ns").collect()


def _windows(spans: pl.DataFrame, pipelines: pl.DataFrame) -> pl.DataFrame:
    """Return step, rank, pipeline and the pipeline's window in that step."""
    # An action without device times is on the host lane; with it, its rank would seem idle all the time.
    on_device = (pl.col("lane") == COMPUTE) & pl.col("step").is_not_null()
    is_action = pl.col("kind").is_in(ACTION_KINDS) & on_device
    return (
        spans.lazy()
        .filter(is_action)
        .group_by("step", "rank")
        .agg(pl.min("start_ns"), pl.max("end_ns"))
        .collect()
        .join(pipelines, on="rank")
        .with_columns(
            window_start_ns=pl.min("start_ns").over("step", "pipeline"),
            window_end_ns=pl.max("end_ns").over("step", "pipeline"),
        )
        .with_columns(window_ns=pl.col("window_end_ns") - pl.col("window_start_ns"))
        .drop("start_ns", "end_ns")
        .sort("step", "rank")
    )
