"""Causes of which nothing was recorded: their time is unknown, and not zero.

Transfers are recorded if the arrival of any message between two ranks is known; gradient reductions, optimizer steps
and data loading if there is any such span. A simulated step is complete as it is. In the tables of a report the columns
of unrecorded causes are null; whatever time they took is in other parts, so the parts still sum to the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.iteration.activities import LOADING, OPTIMIZER, REDUCTION, name_activities
from stagescope.model.simulated import is_simulated
from stagescope.vocabulary.kinds import ACTION_KINDS, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from stagescope.analysis.graph.actions import Actions
    from stagescope.model import Timeline

TRANSFER_COLUMNS = ("exposed_communication_ns", "blocked_on_send_ns")
ACTIVITY_COLUMNS = {f"{name}_ns": name for name in (REDUCTION, OPTIMIZER, LOADING)}


class RecordedCauses(NamedTuple):
    """Which causes some spans show: the activities in them, and whether messages between ranks were needed and arrived.

    Without actions there is no time to explain.
    """

    activities: frozenset[str]
    has_actions: bool
    needs_transfers: bool
    has_transfers: bool


def find_recorded_causes(spans: pl.DataFrame, actions: Actions) -> RecordedCauses:
    """Return which causes were recorded; `actions` is from find_actions."""
    other = ~pl.col("kind").is_in([*ACTION_KINDS, *TRANSFERS])
    activities = frozenset(name_activities(spans.filter(other))["activity"].unique())
    needs = bool(actions.needs["is_remote"].any())
    return RecordedCauses(activities, not actions.table.is_empty(), needs, actions.has_transfers)


def join_recorded_causes(parts: Iterable[RecordedCauses]) -> RecordedCauses:
    """Return which causes were recorded, given those of parts of a run."""
    kept = list(parts)
    needing = [part for part in kept if part.needs_transfers]
    return RecordedCauses(
        frozenset().union(*(part.activities for part in kept)),
        any(part.has_actions for part in kept),
        bool(needing),
        any(part.has_transfers for part in needing) if needing else True,
    )


def unrecorded_columns(timeline: Timeline, recorded: RecordedCauses) -> frozenset[str]:
    """Return the columns of causes of which the run recorded nothing; `timeline` needs its small tables only."""
    if is_simulated(timeline) or not recorded.has_actions:
        return frozenset()
    missing = {column for column, name in ACTIVITY_COLUMNS.items() if name not in recorded.activities}
    return frozenset(missing | (set() if recorded.has_transfers else set(TRANSFER_COLUMNS)))


def find_unrecorded(timeline: Timeline, actions: Actions) -> frozenset[str]:
    """Return the columns of causes of which the run recorded nothing; `actions` is from find_actions."""
    return unrecorded_columns(timeline, find_recorded_causes(timeline.spans, actions))


def without_unrecorded(table: pl.DataFrame, unrecorded: Collection[str]) -> pl.DataFrame:
    """Return a table with null in the columns of unrecorded causes, where they are 0 throughout."""
    return without_columns(table, empty_columns([table], unrecorded))


def empty_columns(parts: Iterable[pl.DataFrame], unrecorded: Collection[str]) -> set[str]:
    """Return the columns of unrecorded causes that are 0 throughout the parts of a table."""
    found = set(unrecorded)
    for rows in parts:
        found = {name for name in found if name in rows.columns and not (rows[name] != 0).any()}
    return found


def without_columns(table: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Return a table with null in some columns."""
    return table.with_columns(pl.lit(None, table.schema[name]).alias(name) for name in names)


def losses_without_unrecorded(losses: pl.DataFrame, unrecorded: Collection[str]) -> pl.DataFrame:
    """Return the table LOSSES with null for unrecorded causes that are 0."""
    names = [name.removesuffix("_ns") for name in unrecorded]
    is_empty = pl.col("part").is_in(names) & (pl.col("ns") == 0)
    return losses.with_columns(
        pl.when(~is_empty).then(pl.col(name)).alias(name) for name in ("ns", "fraction", "low_ns", "high_ns")
    )
