"""Slack: how much later every action could have ended without making its step longer.

Durations, the order on every rank and launch delays stay as measured. The constraints are those of
binding_constraints.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.binding_constraints import BindingConstraints

UNLIMITED_NS = np.iinfo(np.int64).max
"""The latest time of a send that nothing waits for. No duration or lag that is subtracted from it is negative."""

SLACK = Table(
    "slack",
    "one action",
    ("action",),
    (
        Column("action", pl.UInt32, "", "Action."),
        Column("row", pl.UInt32, "", "Its row in the spans of the run."),
        Column(
            "slack_ns",
            pl.Int64,
            "ns",
            "How much later it could have ended without the last action of its pipeline's step ending later.",
        ),
    ),
)


def measure_slack(actions: Actions, binding_constraints: BindingConstraints) -> pl.DataFrame:
    """Return the table SLACK: one row per action, 0 on every critical path ("total float" of that method)."""
    plan = binding_constraints.plan
    count, sends = len(plan.order), plan.sends
    # A step ends with its last action: a blocking send may end later, and is limited only by what waits for it.
    last_end_ns = np.append(_last_end_ns(actions.table), np.full(len(sends.need), UNLIMITED_NS))
    # The starts follow after the ends: only gates of blocking sends constrain a start.
    latest_ns = np.concatenate([last_end_ns[plan.order], np.full(count + 2, UNLIMITED_NS)])
    # From the time at which its constraints are met to its end: a late launch is part of it.
    lasting_ns = binding_constraints.end_ns[:count] - binding_constraints.ready_ns
    launch_ns = binding_constraints.start_ns[:count] - binding_constraints.ready_ns
    # Backward pass of the critical path method, from the last level to the first.
    for first, stop in zip(plan.levels[-2::-1].tolist(), plan.levels[:0:-1].tolist(), strict=True):
        level = slice(first, stop)
        ready_ns = latest_ns[level] - lasting_ns[level]
        if len(sends.need):
            starts = slice(count + 1 + first, count + 1 + stop)
            ready_ns = np.minimum(ready_ns, latest_ns[starts] - launch_ns[level])
        for source, lag_ns in binding_constraints.constraints:
            np.minimum.at(latest_ns, source[level], ready_ns - lag_ns[level])
    slack_ns = np.empty(count, dtype=np.int64)
    slack_ns[plan.order] = latest_ns[:count] - binding_constraints.end_ns[:count]
    return actions.table.select("action", "row", slack_ns=pl.Series(slack_ns[: plan.actions], dtype=pl.Int64))


def _last_end_ns(table: pl.DataFrame) -> NDArray[np.int64]:
    """Return the last end of the pipeline and step of every action; actions are sorted by both."""
    if table.is_empty():
        return np.empty(0, dtype=np.int64)
    pipeline, step = table["pipeline"].to_numpy(), table["step"].to_numpy()
    changes = (pipeline[1:] != pipeline[:-1]) | (step[1:] != step[:-1])
    first = np.concatenate(([0], np.flatnonzero(changes) + 1))
    last_end_ns = np.maximum.reduceat(table["end_ns"].to_numpy(), first)
    return np.repeat(last_end_ns, np.diff(np.append(first, table.height)))
