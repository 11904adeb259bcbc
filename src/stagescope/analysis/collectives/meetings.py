"""Collectives between the steps of a pipeline, at which ranks meet, and what each rank did on its own before them.

The own time of a rank before a meeting is from the end of its last action of the step, or of the meeting before, until
it issued the collective, without the time in which it waited for other ranks. A rank whose last backward is late
because of the schedule has no more own time than the others; a rank that did something else in between has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.coverage import covered_ns, unite
from stagescope.model.tables import Column, Table
from stagescope.vocabulary.kinds import COLLECTIVE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Collection

FEWEST_RANKS = 2
KEY = ("step", "group", "sequence")

MEETINGS = Table(
    "meetings",
    "one rank at one collective between two steps that several ranks recorded",
    ("step", "rank", "arrived_ns"),
    (
        Column("step", pl.Int32, "", "Training step after whose actions it came."),
        Column("group", pl.String, "", "Process group."),
        Column("sequence", pl.Int32, "", "Number of the collective in its group."),
        Column("operation", pl.String, "", "What it does, such as all_reduce."),
        Column("is_reduction", pl.Boolean, "", "Whether it reduces gradients."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("since_ns", pl.Int64, "ns", "End of its last action, or of its meeting before this one."),
        Column("arrived_ns", pl.Int64, "ns", "When it issued the collective."),
        Column("done_ns", pl.Int64, "ns", "When it knew that the collective was done."),
        Column("own_ns", pl.Int64, "ns", "From since_ns to arrived_ns, without waits for other ranks."),
        Column("arrival_wait_ns", pl.Int64, "ns", "How long it waited for the last rank.", nullable=True),
        Column("waited", pl.Boolean, "", "Whether it could not go on before the last rank had come."),
        Column("last_rank", pl.Int32, "", "Rank that issued it last."),
        Column("last_ns", pl.Int64, "ns", "When that rank issued it."),
    ),
)


def find_meetings(collectives: pl.DataFrame, turns: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the table MEETINGS; `collectives` is the table COLLECTIVES, `turns` is from find_turns.

    Collectives that a rank issued inside of a step, such as an overlapped gradient reduction, are no meetings, and
    neither are those for which no wait was recorded on any rank.
    """
    shared = collectives.filter(pl.col("ranks") >= FEWEST_RANKS)
    if shared.is_empty() or turns.is_empty():
        return MEETINGS.empty()
    placed = (
        shared.drop("step")
        .sort("start_ns")
        .join_asof(turns, left_on="start_ns", right_on="began_ns", by="rank", check_sortedness=False)
        .filter(pl.col("ended_ns") <= pl.col("start_ns"))
    )
    whole = (pl.len().over(KEY) >= FEWEST_RANKS) & pl.col("exposed_ns").is_not_null().any().over(KEY)
    placed = placed.filter(whole & (pl.len().over(KEY) == pl.col("ranks")))
    before_ns = pl.col("end_ns").shift(1).over("rank", "step", order_by="start_ns")
    met = placed.with_columns(
        since_ns=pl.max_horizontal("ended_ns", pl.when(before_ns <= pl.col("start_ns")).then(before_ns)),
        arrived_ns="start_ns",
        done_ns="end_ns",
        waited=(pl.col("arrival_wait_ns") > 0).fill_null(value=False)
        | (pl.col("rank") == pl.col("last_rank")),
    )
    return (
        met.with_columns(own_ns=_own(met, spans))
        .select(pl.col(name).cast(dtype) for name, dtype in MEETINGS.schema.items())
        .sort(MEETINGS.order)
    )


def _own(met: pl.DataFrame, spans: pl.DataFrame) -> pl.Series:
    """Return the time before each meeting without waits for other ranks."""
    windows = met.select("rank", window_start_ns="since_ns", window_end_ns="arrived_ns")
    waited_ns = covered_ns(windows, unite(list_waits(spans)))
    own: pl.Series = windows["window_end_ns"] - windows["window_start_ns"] - waited_ns
    return own


def list_waits(spans: pl.DataFrame, ranks: Collection[int] | None = None) -> pl.DataFrame:
    """Return rank, start_ns and end_ns of recorded waits for other ranks; of a collective without one, all of it."""
    chosen = pl.col("kind").is_in([*TRANSFERS, COLLECTIVE, "grad_reduce"])
    if ranks is not None:
        chosen &= pl.col("rank").is_in(list(ranks))
    is_collective = ~pl.col("kind").is_in(TRANSFERS)
    start_ns, end_ns = (
        pl.when(pl.col("wait_start_ns").is_null() & is_collective).then(whole).otherwise(wait)
        for whole, wait in (("start_ns", "wait_start_ns"), ("end_ns", "wait_end_ns"))
    )
    waits = spans.lazy().filter(chosen).select("rank", start_ns=start_ns, end_ns=end_ns)
    return waits.drop_nulls().collect()
