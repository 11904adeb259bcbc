"""When ranks did nothing but wait for a reduction of gradients, and which messages had to wait for it.

A reduction that runs inside the last backward of a stage, as that of DistributedDataParallel does, keeps its rank from
the next action and from sending the gradient of that backward. A rank that enters a reduction waits for its last
replica first: that part is a wait for the replica, and only the rest is the reduction. Both need the calls of one
reduction on all ranks, which are found by name and number, as in model/collectives.py. Without them everything is
reduction.

Where no wait was recorded, a rank waits for a reduction from the end of its last computation during it. If it computes
when the reduction ends, it does not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.model.coverage import covered_ns, unite
from stagescope.model.segments import search_segments
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

CALL = ("name", "pair", "step")
"""What the calls of one collective have in common on all ranks."""


class Waits(NamedTuple):
    """Parts of some intervals in nanoseconds: gradients are reduced, or the last replica has not come yet."""

    reduction_ns: Integers
    replicas_ns: Integers

    @property
    def total_ns(self) -> Integers:
        """Both parts."""
        total: Integers = self.reduction_ns + self.replicas_ns
        return total

    def at_most(self, limit_ns: Integers) -> Waits:
        """Return what is left if the waits are only `limit_ns` long: their ends, so the reduction comes first."""
        reduction_ns = np.minimum(self.reduction_ns, limit_ns)
        return Waits(reduction_ns, np.minimum(self.replicas_ns, limit_ns - reduction_ns))


class ReductionWaits(NamedTuple):
    """The intervals in which ranks wait for reductions, and the part of them after the last replica has come.

    Both are as from `unite`. `last` has every wait (rank, start_ns, end_ns) and the replica that came last (last_rank).
    """

    every: pl.DataFrame
    reducing: pl.DataFrame
    last: pl.DataFrame

    def filter(self, which: pl.Expr) -> ReductionWaits:
        """Return the waits of some ranks."""
        return ReductionWaits(*(waits.filter(which) for waits in self))

    def in_intervals(self, rank: pl.Series, start_ns: Integers, end_ns: Integers) -> Waits:
        """Return how long the ranks waited in these intervals; an interval that ends before it starts has none."""
        if self.every.is_empty():
            nothing = np.zeros(len(start_ns), dtype=np.int64)
            return Waits(nothing, nothing)
        windows = pl.DataFrame(
            {"rank": rank, "window_start_ns": start_ns, "window_end_ns": np.maximum(start_ns, end_ns)}
        )
        reduction_ns = covered_ns(windows, self.reducing).to_numpy()
        return Waits(reduction_ns, covered_ns(windows, self.every).to_numpy() - reduction_ns)

    def last_end_ns(self, rank: pl.Series, start_ns: Integers, end_ns: Integers) -> Integers:
        """Return when the last wait in each of these intervals ended; the start of an interval without one.

        A wait that goes on at the end of an interval ends there.
        """
        begins_ns, ends_ns = (self.every[name].to_numpy() for name in ("start_ns", "end_ns"))
        known = self.every["rank"].to_numpy()
        first, stop = (np.searchsorted(known, rank.to_numpy(), side=side) for side in ("left", "right"))
        last = search_segments(begins_ns, first, stop, end_ns) - 1
        ended_ns: Integers = start_ns.copy()
        has = np.flatnonzero(last >= first)
        ended_ns[has] = np.maximum(start_ns[has], np.minimum(ends_ns[last[has]], end_ns[has]))
        return ended_ns


class HeldMessages(NamedTuple):
    """The messages that were sent after a wait for a reduction: their rows in `needs`, and how long they were held."""

    need: Integers
    waits: Waits


def no_reduction_waits() -> ReductionWaits:
    """Return no waits, for runs without reductions."""
    schema = {"rank": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}
    none = unite(pl.DataFrame(schema=schema))
    return ReductionWaits(none, none, pl.DataFrame(schema={**schema, "last_rank": pl.Int32}))


def find_reduction_waits(spans: pl.DataFrame) -> ReductionWaits:
    """Return when the ranks of a spans table waited for reductions of gradients."""
    return find_collective_waits(spans.lazy().filter(pl.col("kind") == "grad_reduce").collect(), spans)


def find_collective_waits(collectives: pl.DataFrame, spans: pl.DataFrame) -> ReductionWaits:
    """Return when the ranks waited for some of the collectives of a spans table."""
    if collectives.is_empty():
        return no_reduction_waits()
    waits = _with_waits(collectives, spans)
    # A rank has come when it has issued all parts of the reduction: one span may cover several buckets.
    came_ns = pl.col("entered_ns")
    is_matched = pl.col("pair").is_not_null() & pl.col("name").is_not_null()
    waits = waits.with_columns(
        complete_ns=pl.when(is_matched).then(came_ns.max().over(CALL)),
        last_rank=pl.when(is_matched).then(
            pl.col("rank").sort_by(came_ns, -pl.col("rank")).last().over(CALL)
        ),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))
    began_ns = pl.max_horizontal("start_ns", "complete_ns")
    reducing = waits.with_columns(start_ns=began_ns).filter(pl.col("start_ns") < pl.col("end_ns"))
    last = waits.select("rank", "start_ns", "end_ns", "last_rank").sort("rank", "end_ns")
    return ReductionWaits(unite(waits), unite(reducing), last)


def _with_waits(reductions: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return reductions with start_ns and end_ns of the wait for them, and when their rank has entered them."""
    is_known = pl.col("wait_start_ns").is_not_null() & pl.col("wait_end_ns").is_not_null()
    known = reductions.filter(is_known).with_columns(start_ns="wait_start_ns", end_ns="wait_end_ns")
    known = known.with_columns(entered_ns="start_ns")
    unknown = reductions.filter(~is_known)
    if unknown.is_empty():
        return known
    computed_ns = pl.Series(_computed_until(unknown, spans))
    tails = unknown.with_columns(
        entered_ns="start_ns", start_ns=pl.max_horizontal(pl.col("start_ns"), computed_ns)
    )
    return pl.concat([known, tails.select(known.columns)])


def _computed_until(reductions: pl.DataFrame, spans: pl.DataFrame) -> Integers:
    """Return the last end of what the rank of each reduction began to compute before the end of the reduction."""
    computes = (pl.col("lane") == COMPUTE) & pl.col("rank").is_in(reductions["rank"].unique().implode())
    # Spans are sorted by rank and start.
    computing = spans.lazy().filter(computes).select("rank", "start_ns", "end_ns").collect()
    computed_ns = computing.select(pl.col("end_ns").cum_max().over("rank")).to_series().to_numpy()
    ranks, starts_ns = computing["rank"].to_numpy(), computing["start_ns"].to_numpy()
    first, stop = (np.searchsorted(ranks, reductions["rank"].to_numpy(), side) for side in ("left", "right"))
    # What begins when the reduction ends, such as the optimizer step, does not run during it.
    last = search_segments(starts_ns, first, stop, reductions["end_ns"].to_numpy()) - 1
    until_ns = np.full(reductions.height, np.iinfo(np.int64).min)
    until_ns[last >= first] = computed_ns[last[last >= first]]
    return until_ns


def find_held_messages(table: pl.DataFrame, needs: pl.DataFrame, waits: ReductionWaits) -> HeldMessages:
    """Return the messages that their rank sent only after a wait; `table` is ACTIONS, `needs` is NEEDS.

    Where the send was not recorded, waits count that ended before the message arrived or, without a recorded arrival,
    before the action that needed it.
    """
    none = np.empty(0, dtype=np.int64)
    if waits.every.is_empty() or needs.is_empty():
        return HeldMessages(none, Waits(none, none))
    need = _possibly_held(table, needs, waits)
    rows = needs[need]
    rank, made_ns = (table[name].gather(rows["needs"]) for name in ("rank", "end_ns"))
    starts_ns = table["start_ns"].gather(rows["action"])
    moments = rows.select("sent_ns", there_ns=pl.coalesce("arrived_ns", starts_ns))
    until_ns = moments.select(pl.coalesce("sent_ns", "there_ns")).to_series().to_numpy()
    found = waits.in_intervals(rank, made_ns.to_numpy(), until_ns)
    # A message whose send is unknown may have left before a wait that goes on.
    is_over = waits.last_end_ns(rank, made_ns.to_numpy(), until_ns) < until_ns
    held = np.flatnonzero((found.total_ns > 0) & (is_over | moments["sent_ns"].is_not_null().to_numpy()))
    return HeldMessages(need[held], Waits(found.reduction_ns[held], found.replicas_ns[held]))


def _possibly_held(table: pl.DataFrame, needs: pl.DataFrame, waits: ReductionWaits) -> Integers:
    """Return the messages from actions before a wait, and those that left after the next action of their rank began.

    These are few. Looking for waits after all actions would take a third of the time that finding the actions takes.
    """
    producer = needs["needs"].to_numpy()
    is_last = np.zeros(table.height, dtype=np.bool_)
    is_last[find_actions_before_waits(table, waits)[0]] = True
    next_ns = np.append(table["start_ns"].to_numpy()[1:], np.iinfo(np.int64).max)
    moment_ns = needs["sent_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    is_remote = (needs["is_remote"] & (needs["direction"] != "own")).to_numpy()
    need: Integers = np.flatnonzero(is_remote & (is_last[producer] | (moment_ns > next_ns[producer])))
    return need


def find_actions_before_waits(table: pl.DataFrame, waits: ReductionWaits) -> tuple[Integers, Integers]:
    """Return the last action (a row of `table`) before each wait of its rank, and when that wait ended."""
    start_ns = table["start_ns"].to_numpy()
    first = np.flatnonzero(table["place"].to_numpy() == 0)
    stop = np.append(first[1:], table.height)
    # Sorting the steps of all ranks is cheap, sorting all actions is not.
    turns = table.select("rank", moment_ns="start_ns")[first].with_row_index("turn").sort("moment_ns")
    every = waits.every.select("rank", "end_ns", moment_ns="start_ns").sort("moment_ns")
    found = every.join_asof(turns, on="moment_ns", by="rank", check_sortedness=False)
    found = found.filter(pl.col("turn").is_not_null())
    turn, moment_ns = found["turn"].to_numpy(), found["moment_ns"].to_numpy()
    action = search_segments(start_ns, first[turn], stop[turn], moment_ns + 1) - 1
    return action, found["end_ns"].to_numpy()
