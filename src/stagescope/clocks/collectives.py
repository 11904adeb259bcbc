"""Observations of collectives: no rank leaves one before the last of its ranks has entered.

That holds for collectives in which every rank needs data of all others. Where the data of one rank, the root, goes to
all others, no rank leaves before the root has entered, and the other way round. An asynchronous one is entered when it
is issued, and left when the wait for it ends. Matched over the ranks by group and number; groups whose numbers do not
belong together are not used.

All pairs of the clocks of a large group would be quadratic. Instead, each clock is compared with its neighbors and with
the few clocks that usually enter last: comparisons with a late clock are tight, and any two clocks are compared through
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.clocks.exits import MEMBER_EXITS, OF_EXITS, with_exits
from stagescope.clocks.observation_table import OBSERVATION_SCHEMA
from stagescope.clocks.thinning import thinned
from stagescope.model.collectives import find_calls
from stagescope.model.large_tables import few_rows, reduced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Operations in which every rank waits for all others. An all-to-all in which a rank sends another nothing does not
wait for it; such splits are not known here."""
FROM_ROOT, TO_ROOT = ("broadcast", "scatter"), ("reduce", "gather")
"""Operations in which all other ranks wait for the root, and in which the root waits for all others."""

ALL_PAIRS = 16
"""In a group of up to this many clocks, every pair is compared."""
NEIGHBORS, LATE = 1, 2
"""In larger groups, each clock is compared with this many on either side, and with this many of the latest. Between
clocks that exchange messages with any other, only short delays are used: long ones would cost more than they show."""

MOST_CALLS, FEWEST_CALLS = 1_000_000, 64
"""Of more calls, those with some numbers of each group are looked at, but not fewer numbers than this: each call of a
rank takes 300 bytes, and a clock of a call is compared with up to eight."""
EVENLY, EVENLY_OF = 2_654_435_769, 2**32
"""The golden ratio as a fraction: fractional parts of its multiples are spread evenly, and so are those of every second
or third multiple (Knuth, The Art of Computer Programming, volume 3, section 6.4)."""
MEMBERS_AT_ONCE, MOST_TOGETHER = 100_000, 1_000_000
"""Clocks of calls that are compared at once, and comparisons after which they are thinned."""

LATE_NS = 50_000
"""A rank that enters this long before the last one at most shows a short delay."""
TOLERANCE_NS = 100_000
"""Ranks on one clock that leave this long before another one enters were not in the same collective."""

INCOMPLETE = (
    "collectives.window", "frames.damaged", "frames.missing", "recording.no_end", "spans.dropped", "spans.missing",
)  # fmt: skip
"""Diagnostics that explain why a rank has fewer collectives than others."""
HOST_TIMES = "device.host_times"

KEY = ("group", "sequence")
CALL_COLUMNS = (
    "rank", "step", "peer", "start_ns", "end_ns", "wait_start_ns", "wait_end_ns", *KEY, "operation",
)  # fmt: skip


class Collectives(NamedTuple):
    """The calls of the groups whose numbers belong together, and the reasons why others were left out.

    `calls` has the columns CALL_COLUMNS, slot, clock and blocked_ns (null: the wait was not recorded); `mismatched` has
    the columns group and reason.
    """

    calls: pl.DataFrame
    mismatched: pl.DataFrame


def calls_of(spans: pl.DataFrame, groups: pl.Series | None = None) -> pl.DataFrame:
    """Return the calls of numbered collectives in a spans table with CALL_COLUMNS; of some groups only, if given."""
    calls = find_calls(spans).select(CALL_COLUMNS)
    return calls if groups is None else calls.filter(pl.col("group").is_in(groups.implode()))


def some_calls(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the calls of all parts, from calls_of, with their slot; of very many, those with some numbers of a group.

    The slot is which synchronizing call of its step and group a call is, by its number; -1 without a step. `parts` are
    iterated more than once, one after the other.
    """
    sizes = reduced((rows.select("group", "sequence", size=pl.lit(1, pl.Int64)) for rows in parts), _sizes)
    every = max(-(-int(sizes["size"].sum()) // MOST_CALLS), 1)
    of_groups = sizes.select("group", last="sequence", every=_every(every))
    if every == 1:
        return _with_slots(pl.concat(parts))
    return pl.concat([_chosen_calls(_with_slots(rows), of_groups) for rows in parts])


def _sizes(calls: pl.DataFrame) -> pl.DataFrame:
    return calls.group_by("group").agg(pl.max("sequence"), pl.sum("size"))


def _every(every: int) -> pl.Expr:
    return (pl.col("sequence") // FEWEST_CALLS).clip(1, every)


def _chosen_calls(calls: pl.DataFrame, of_groups: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with one of every n numbers of their group, and with its last one; with the columns of `calls`.

    Not every n-th number: if n is a multiple of the calls of a step, these would all be the same call of their step.
    """
    placed = calls.join(of_groups, on="group", how="left", maintain_order="left")
    spread = pl.col("sequence").cast(pl.UInt64) * EVENLY % EVENLY_OF
    is_chosen = (spread * pl.col("every") < EVENLY_OF) | (pl.col("sequence") == pl.col("last"))
    return placed.filter(is_chosen).select(calls.columns)


def _with_slots(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of a run or of a part of it with their slot; see some_calls."""
    first = pl.col("sequence").filter(_synchronizes()).min().over("group", "step")
    slot = pl.when(pl.col("step").is_null()).then(-1).otherwise(pl.col("sequence") - first)
    return calls.with_columns(slot=slot.cast(pl.Int64))


def _synchronizes() -> pl.Expr:
    waited = pl.col("wait_start_ns").is_not_null() & pl.col("wait_end_ns").is_not_null()
    return waited & pl.col("operation").is_in(SYNCHRONIZING)


def match_calls(calls: pl.DataFrame, diagnostics: pl.DataFrame, clocks: pl.DataFrame) -> Collectives:
    """Return the collectives of groups on several clocks; `clocks` has the columns rank and clock (a number).

    `calls` are those of some_calls, in the order of a spans table, and `diagnostics` those of the run.
    """
    calls = calls.join(clocks, on="rank", maintain_order="left")
    calls = calls.with_columns(blocked_ns=pl.col("wait_end_ns") - pl.col("wait_start_ns"))
    calls = calls.filter((pl.col("clock").n_unique() > 1).over("group"))
    if calls.is_empty():
        return Collectives(calls, pl.DataFrame(schema={"group": pl.String, "reason": pl.String}))
    notes = diagnostics.filter(pl.col("code").is_in(INCOMPLETE))["rank"].drop_nulls()
    differs = {
        "calls with one number have different operations": pl.col("operation").n_unique().over(KEY) > 1,
        "calls with one number have different roots": pl.col("peer").drop_nulls().n_unique().over(KEY) > 1,
        "calls with one number are in different steps": pl.col("step").drop_nulls().n_unique().over(KEY) > 1,
        "a rank has two calls with one number": pl.len().over(*KEY, "rank") > 1,
        "ranks on one machine were not in the same call": _is_apart(),
        "ranks have different numbers of calls": _is_short(notes),
    }
    reason = pl.coalesce(
        pl.when(condition.any().over("group")).then(pl.lit(text)) for text, condition in differs.items()
    )
    judged = calls.with_columns(reason=reason)
    mismatched = (
        judged.filter(pl.col("reason").is_not_null()).select("group", "reason").unique().sort("group")
    )
    return Collectives(judged.filter(pl.col("reason").is_null()).drop("reason"), mismatched)


def _is_apart() -> pl.Expr:
    """Return whether ranks on one clock left a synchronizing collective before others on it entered."""
    first_left, last_entered = pl.col("end_ns").min(), pl.col("start_ns").max()
    return _synchronizes().all().over(*KEY, "clock") & (
        (last_entered - first_left).over(*KEY, "clock") > TOLERANCE_NS
    )


def _is_short(incomplete: pl.Series) -> pl.Expr:
    """Return whether a rank's last number is below that of others, though nothing of its recording is missing."""
    last = pl.col("sequence").max()
    return (last.over("group", "rank") < last.over("group")) & ~pl.col("rank").is_in(incomplete.implode())


def collective_observations(
    collectives: Collectives, host_timed: pl.Series, messaging: pl.Series, most: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the observations of collectives, in the columns of observations.py, and how far apart their ranks leave.

    Very many are thinned to `most` of each pair of clocks.

    `messaging` are the clocks with messages in both directions, `host_timed` the ranks whose device is not timed: what
    they recorded is when the host launched a collective. Calls without a recorded wait end with their issue, before
    the other ranks have entered.
    """
    timed = collectives.calls.filter(~pl.col("rank").is_in(host_timed.implode()))
    timed = timed.with_columns(is_large=pl.col("clock").n_unique().over("group") > ALL_PAIRS)
    is_used = pl.col("waited") | ~pl.col("is_large") | ~_are_in(messaging)
    members, exits = _members(timed)
    found: list[pl.DataFrame] = []
    for part in (*_of_all(members), _from_root(timed), _to_root(timed)):
        used = few_rows(part, is_used)
        found.append(used.select(pl.col(name).cast(dtype) for name, dtype in OBSERVATION_SCHEMA.items()))
        if sum(each.height for each in found) > MOST_TOGETHER:
            found = [thinned(pl.concat(found), most)]
    return pl.concat(found), exits


def _members(timed: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the clocks of calls in which every rank waits for all others, and how far apart they leave."""
    calls = timed.filter(_synchronizes())
    members = calls.group_by(*KEY, "clock", maintain_order=True).agg(
        entered_ns=pl.max("start_ns"),
        left_ns=pl.min("end_ns"),
        entered_rank=pl.col("rank").gather(pl.col("start_ns").arg_max()).first(),
        left_rank=pl.col("rank").gather(pl.col("end_ns").arg_min()).first(),
        step=pl.first("step"),
        # Calls at the same place of each step are about the same size; the first of a step is the lowest number.
        slot=pl.first("slot"),
        blocked_ns=pl.col("blocked_ns").gather(pl.col("end_ns").arg_min()).first(),
    )
    # All leave at about the same time, so the shortest stay is that of the last to enter, on whichever clock.
    members = members.with_columns(stay_ns=pl.col("left_ns") - pl.col("entered_ns"))
    early_ns = pl.col("stay_ns") - pl.col("stay_ns").min().over(KEY)
    members = members.with_columns(early_ns=early_ns, call="sequence", name="group")
    return with_exits(members, ("group",))


def _of_all(members: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the observations of collectives in which every rank waits for all others: of some calls after others."""
    pairs = _pairs(members)
    if members.height <= MEMBERS_AT_ONCE:
        yield _compared(members, pairs)
        return
    ordered = members.sort(KEY, maintain_order=True)
    number = ordered.select(pl.struct(KEY).rle_id()).to_series()
    last = number.gather([*range(MEMBERS_AT_ONCE, ordered.height, MEMBERS_AT_ONCE), ordered.height - 1])
    first = 0
    for stop in number.search_sorted(last.unique().sort(), side="right").to_list():
        yield _compared(ordered[first:stop], pairs)
        first = stop


def _compared(members: pl.DataFrame, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of the calls of these members; `pairs` are those of all calls."""
    sources = members.select(
        *KEY,
        *("step", "early_ns", "stay_ns", *MEMBER_EXITS),
        source="clock",
        source_rank="entered_rank",
        sent_ns="entered_ns",
    )
    targets = members.select(
        *KEY,
        "blocked_ns",
        target="clock",
        target_rank="left_rank",
        received_ns="left_ns",
        target_constant_ns="constant_ns",
    )
    return (
        sources.join(pairs, on=["group", "source"])
        .join(targets, on=[*KEY, "target"])
        .with_columns(
            kind=pl.lit("collective"),
            microbatch=pl.lit(None, pl.Int32),
            by_exit=pl.lit(value=False),
            waited=(pl.col("early_ns") <= LATE_NS) & (pl.col("blocked_ns") > 0),
        )
    )


def _from_root(timed: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of collectives in which no rank is done before the root has begun.

    How long the data took to get there is not known, so they bound offsets, and show no short delays.
    """
    calls = timed.filter(pl.col("operation").is_in(FROM_ROOT) & pl.col("peer").is_not_null())
    roots = calls.filter(pl.col("rank") == pl.col("peer"))
    others = calls.filter(pl.col("blocked_ns").is_not_null() & (pl.col("rank") != pl.col("peer")))
    targets = others.group_by(*KEY, target="clock", maintain_order=True).agg(
        received_ns=pl.min("end_ns"), target_rank=pl.col("rank").gather(pl.col("end_ns").arg_min()).first()
    )
    sources = roots.select(*KEY, "step", "is_large", source="clock", source_rank="rank", sent_ns="start_ns")
    return _one_way(sources.join(targets, on=KEY, maintain_order="left"))


def _to_root(timed: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of collectives in which the root is not done before all other ranks have begun."""
    calls = timed.filter(pl.col("operation").is_in(TO_ROOT) & pl.col("peer").is_not_null())
    roots = calls.filter(pl.col("blocked_ns").is_not_null() & (pl.col("rank") == pl.col("peer")))
    others = calls.filter(pl.col("rank") != pl.col("peer"))
    sources = others.group_by(*KEY, source="clock", maintain_order=True).agg(
        sent_ns=pl.max("start_ns"), source_rank=pl.col("rank").gather(pl.col("start_ns").arg_max()).first()
    )
    targets = roots.select(*KEY, "step", "is_large", target="clock", target_rank="rank", received_ns="end_ns")
    return _one_way(sources.join(targets, on=KEY, maintain_order="left"))


def _one_way(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.filter(pl.col("source") != pl.col("target")).with_columns(
        kind=pl.lit("collective"),
        microbatch=pl.lit(None, pl.Int32),
        waited=pl.lit(value=False),
        **{name: pl.lit(None, pl.Int64) for name in ("stay_ns", *OF_EXITS)},
        by_exit=pl.lit(value=False),
    )


def _are_in(clocks: pl.Series) -> pl.Expr:
    return pl.col("source").is_in(clocks.implode()) & pl.col("target").is_in(clocks.implode())


def _pairs(members: pl.DataFrame) -> pl.DataFrame:
    """Return the directed pairs of clocks to compare in each group: group, source, target, is_large."""
    usual = (
        members.group_by("group", "clock")
        .agg(pl.median("early_ns"))
        .sort("group", "early_ns", "clock")
        .group_by("group", maintain_order=True)
        .agg("clock")
    )
    parts = [_pairs_of(group, np.array(clocks, np.int32)) for group, clocks in usual.iter_rows()]
    schema = {"group": pl.String, "source": pl.Int32, "target": pl.Int32, "is_large": pl.Boolean}
    return pl.concat([pl.DataFrame(schema=schema), *parts])


def _pairs_of(group: str, latest_first: np.ndarray) -> pl.DataFrame:
    """Return the directed pairs of the clocks of one group."""
    clocks, count = np.sort(latest_first), len(latest_first)
    places = np.arange(count)
    if count <= ALL_PAIRS:
        one, other = (grid.ravel() for grid in np.meshgrid(clocks, clocks))
    else:
        ring = [clocks[(places + distance) % count] for distance in range(1, NEIGHBORS + 1)]
        others = [*ring, *(np.full(count, late) for late in latest_first[:LATE])]
        one, other = np.tile(clocks, len(others)), np.concatenate(others)
        one, other = np.concatenate([one, other]), np.concatenate([other, one])
    pairs = pl.DataFrame({"source": one, "target": other}).filter(pl.col("source") != pl.col("target"))
    is_large = pl.lit(count > ALL_PAIRS).alias("is_large")
    return pairs.unique(maintain_order=True).select(
        pl.lit(group).alias("group"), "source", "target", is_large
    )
