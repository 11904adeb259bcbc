"""Whether timestamps contradict the dependencies: actions that started before their input had been computed.

A few microseconds are the error of the clocks. If usual steps have contradictions of half of the window or more,
clocks or labels are wrong, and what ranks waited for cannot be derived from them. Nor can it if a clock may be off by
as much: where the clocks of replicas are, no input shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.step_groups import group_actions
from stagescope.model.diagnostics import Diagnostic
from stagescope.vocabulary.durations import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

SMALL, LARGE = "clock.causality", "timestamps.contradictory"
"""Codes: what waits are computed from is slightly off, or useless."""

UNCERTAIN = "clock.uncertain"
"""Code: the estimated error of clocks is too large for waits between ranks."""

UNALIGNED = ("clock.unaligned", "clock.wall")
"""Codes of diagnostics that explain contradictions: clocks could not be aligned, or are not, as requested."""

MOST_CONTRADICTION_FRACTION = 0.5
"""Idle time is not explained if, in at least half of the steps, an action started this fraction of the window early, or
if a clock may be off by more."""


CONTRADICTIONS = {"step": pl.Int32, "window_ns": pl.Int64, "early_ns": pl.Int64, "count": pl.Int64}
"""Columns of find_contradictions."""


def find_contradictions(table: pl.DataFrame, needs: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """Return how many actions of every pipeline and step started before their input existed, and by how much at most.

    `table` and `needs` are the tables ACTIONS and NEEDS, `clocks` has the clock of every rank and its error (rank,
    clock, error_ns): only what is beyond the error of both clocks counts. A row has step, window_ns, early_ns and
    count, which are 0 without contradictions.
    """
    groups = group_actions(table)
    action, producer = needs["action"].to_numpy(), needs["needs"].to_numpy()
    early_ns = table["end_ns"].to_numpy()[producer] - table["start_ns"].to_numpy()[action]
    early = np.flatnonzero(early_ns > 0)
    early_ns, action, producer = early_ns[early], action[early], producer[early]
    beyond = early_ns > _allowed_ns(table["rank"], (action, producer), clocks)
    early_ns, step = early_ns[beyond], groups.step_of_action()[action[beyond]]
    most_ns = np.zeros(groups.steps.height, dtype=np.int64)
    np.maximum.at(most_ns, step, early_ns)
    found = groups.steps.select("step").with_columns(
        window_ns=pl.Series(groups.window_ns(table)),
        early_ns=pl.Series(most_ns),
        count=pl.Series(np.bincount(step, minlength=groups.steps.height)),
    )
    return found.cast(CONTRADICTIONS)  # type: ignore[arg-type]  # types of columns


def judge_contradictions(found: Iterable[pl.DataFrame], *, is_unaligned: bool = False) -> list[Diagnostic]:
    """Return a diagnostic about the contradictions of all steps, from find_contradictions, some after the others.

    Its code is LARGE if idle time cannot be explained. That is an error, unless clocks are known to be unaligned.
    """
    sums = pl.concat([rows.select(pl.sum("count"), pl.max("early_ns")) for rows in found])
    count = int(sums["count"].sum())
    if not count:
        return []
    fraction = pl.col("early_ns") / pl.col("window_ns").clip(1)
    fractions = pl.concat([rows.select(fraction=fraction) for rows in found])["fraction"]
    most = f"actions started up to {duration_text(sums['early_ns'].to_numpy().max())} before their input was computed"
    if float(np.median(fractions.to_numpy())) > MOST_CONTRADICTION_FRACTION:
        message = f"{most}: clocks or labels are wrong, and idle time cannot be explained"
        severity = "warning" if is_unaligned else "error"
        return [Diagnostic(severity, message, count=count, code=LARGE)]
    return [Diagnostic("warning", f"{most}; check the clock alignment", count=count, code=SMALL)]


def judge_clocks(found: Iterable[pl.DataFrame], clocks: pl.DataFrame) -> list[Diagnostic]:
    """Return a diagnostic about clocks that may be off by more than a fraction of the usual window of a step.

    `found` is from find_contradictions, some steps after the others. `clocks` has the clock of every rank with an
    action and its estimated error (rank, clock, estimated_ns; null if it is unknown).
    """
    own = clocks.unique("clock")
    limits_ns = own.select(pl.col("estimated_ns") / MOST_CONTRADICTION_FRACTION)["estimated_ns"]
    shortest_ns = pl.concat([rows.select(pl.min("window_ns")) for rows in found])["window_ns"].min()
    if shortest_ns is None or not (limits_ns > shortest_ns).any():  # without looking at all windows together
        return []
    window_ns = float(np.median(np.concatenate([rows["window_ns"].to_numpy() for rows in found])))
    uncertain = own.filter(pl.col("estimated_ns") > MOST_CONTRADICTION_FRACTION * window_ns)
    if uncertain.is_empty():
        return []
    most_ns = int(uncertain["estimated_ns"].to_numpy().max())
    text = (
        f"the clocks of {uncertain.height} of {own.height} machines may be off by more than half the pipeline "
        f"window, by up to {duration_text(most_ns)}: idle time cannot be explained"
    )
    return [Diagnostic("warning", text, count=uncertain.height, code=UNCERTAIN)]


def _allowed_ns(
    rank: pl.Series, sides: tuple[NDArray[np.uint32], NDArray[np.uint32]], clocks: pl.DataFrame
) -> Integers:
    """Return the error of both clocks, 0 where there is only one."""
    first, second = (
        pl.DataFrame({"rank": rank.gather(side)}).join(clocks, on="rank", how="left", maintain_order="left")
        for side in sides
    )
    same_clock = (first["clock"] == second["clock"]).fill_null(value=False) | (
        first["rank"] == second["rank"]
    )
    allowed: Integers = (
        (first["error_ns"].fill_null(0) + second["error_ns"].fill_null(0)) * (~same_clock)
    ).to_numpy()
    return allowed
