"""Ranks that begin a step late because they load data or do other work, while others wait to send to them.

A rank that has not posted its first receive keeps its neighbor in a blocking send, whose own neighbor is then blocked,
too. That is not the time of a send: what the late rank was recorded to do from when its neighbor wanted to send until
it posted the receive moves from blocked on send to data loading or other work, as far as the step has that much.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.blocking_sends import CONTRADICTED_FRACTION
from stagescope.analysis.iteration.activities import LOADING, OTHER, name_activities, shows_activity
from stagescope.model.coverage import covered_ns, unite

if TYPE_CHECKING:
    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.blocking_sends import BlockingSends
    from stagescope.analysis.idle.ledger import Ledger

BLOCKED = "blocked_on_send"
KEYS = ("pipeline", "step")


def count_late_receivers(
    ledger: Ledger, actions: Actions, sends: BlockingSends, spans: pl.DataFrame
) -> Ledger:
    """Return the ledger with what late receivers do as its own cause; origins move to the late rank."""
    late = _find_late_receivers(actions, sends, spans)
    if late.is_empty():
        return ledger
    blocked_ns = pl.col(f"{BLOCKED}_ns").clip(lower_bound=0)
    loads = pl.min_horizontal(blocked_ns, LOADING)
    moved = (
        ledger.steps.select(*KEYS, f"{BLOCKED}_ns")
        .join(late, on=KEYS)
        .with_columns(loads.alias(LOADING), pl.min_horizontal(blocked_ns - loads, OTHER).alias(OTHER))
        .filter(pl.col(LOADING) + pl.col(OTHER) > 0)
    )
    return replace(
        ledger,
        steps=_moved(ledger.steps, moved),
        ranks=_moved(ledger.ranks, moved),
        losses=_moved(ledger.losses, moved),
        origins=_moved_origins(ledger.origins, moved),
    )


def _find_late_receivers(actions: Actions, sends: BlockingSends, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the rank of each step that kept its neighbor waiting for longest, and its activities meanwhile.

    Columns: pipeline, step, rank, stage, kind (of its first action), data_loading and other_work, in ns.
    """
    rows, table = actions.needs[sends.need], actions.table
    consumer = rows["action"].to_numpy()
    first = consumer - table["place"].to_numpy()[consumer]
    posted_ns = rows["posted_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    # Posted before the first action of its rank, but after the message could have left.
    is_late = (posted_ns <= table["start_ns"].to_numpy()[first]) & (posted_ns > sends.free_ns)
    if not is_late.any() or (sends.end_ns < posted_ns)[is_late].mean() > CONTRADICTED_FRACTION:
        return pl.DataFrame()
    found = table[first[is_late]].select(*KEYS, "rank", "stage", "kind")
    windows = found.select(
        "rank",
        window_start_ns=pl.Series(sends.free_ns[is_late]),
        window_end_ns=pl.Series(posted_ns[is_late]),
    )
    named = name_activities(spans.filter(shows_activity() & (pl.col("kind") != "grad_reduce")))
    loading_ns = covered_ns(windows, unite(named.filter(pl.col("activity") == LOADING)))
    longest: pl.DataFrame = (
        found.with_columns(
            late_ns=windows["window_end_ns"] - windows["window_start_ns"],
            **{LOADING: loading_ns, OTHER: covered_ns(windows, unite(named)) - loading_ns},
        )
        .sort("late_ns", "rank", descending=[True, False])
        .unique(KEYS, keep="first", maintain_order=True)
        .drop("late_ns")
    )
    return longest


def _moved(table: pl.DataFrame, moved: pl.DataFrame) -> pl.DataFrame:
    """Return a table of the ledger with the times of `moved` in other columns."""
    parts = moved.select(*KEYS, loads=LOADING, others=OTHER)
    joined = table.join(parts, on=KEYS, how="left", maintain_order="left")
    loads, others = (pl.col(name).fill_null(0) for name in ("loads", "others"))
    return joined.with_columns(
        pl.col(f"{BLOCKED}_ns") - loads - others,
        pl.col(f"{LOADING}_ns") + loads,
        pl.col(f"{OTHER}_ns") + others,
    ).select(table.columns)


def _moved_origins(origins: pl.DataFrame, moved: pl.DataFrame) -> pl.DataFrame:
    """Return origins in which blocked sends have only what is left, and late ranks what was moved."""
    if origins.is_empty():
        return origins
    left = 1 - (pl.col(LOADING) + pl.col(OTHER)) / pl.col(f"{BLOCKED}_ns")
    kept = (
        origins.join(moved.select(*KEYS, left=left), on=KEYS, how="left", maintain_order="left")
        .with_columns(
            added_ns=pl.when(pl.col("cause") == BLOCKED)
            .then(pl.col("added_ns") * pl.col("left").fill_null(1.0))
            .otherwise("added_ns")
        )
        .select(origins.columns)
    )
    added = [
        moved.filter(pl.col(cause) > 0).select(
            *KEYS,
            "rank",
            "stage",
            "kind",
            cause=pl.lit(cause).cast(origins.schema["cause"]),
            peer=pl.lit(None, pl.Int32),
            added_ns=pl.col(cause).cast(pl.Float64),
        )
        for cause in (LOADING, OTHER)
    ]
    return pl.concat([kept, *(each.select(kept.columns) for each in added)]).sort(origins.columns[:-1])
