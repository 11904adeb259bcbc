"""Observations of gradient reductions without a number, which step, stage and tensor coordinates identify."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.clocks.collectives import LATE_NS
from stagescope.clocks.exits import EXITS_SCHEMA, MEMBER_EXITS, with_exits
from stagescope.clocks.observation_table import OBSERVATION_SCHEMA, ROWS
from stagescope.clocks.thinning import thinned

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.clocks.evidence import Bools, Ints
    from stagescope.model import Timeline

REDUCED = ("step", "stage", "tp", "cp")
"""What the members of a gradient reduction without a number have in common."""

MOST_REDUCERS = 16
"""In a reduction without a number, up to this many clocks are compared pair by pair; of more, each clock with the eight
next to it on either side. All pairs of a large reduction would be quadratic."""

MOST_TOGETHER = 2_000_000
"""More observations of some stages are thinned while others are still looked at."""

ROWS_TOGETHER = 200_000
"""Rows that are looked at together for the names of their stages: Polars takes 100 bytes per row for that."""

STARS = 16
"""About as many calls of a stage compare all its replicas with the last one to enter, if they are more than that."""

MOST_LONG = 1_000
"""Long delays of one large reduction that are used in each direction of its ring, about. With 125 clocks next to each
other alone, bounds are 1.6 times as wide as with eight on either side."""


def reductions_of(timeline: Timeline) -> pl.DataFrame:
    """Return the rows of gradient reductions without a number, with what identifies their members.

    `occurrence` counts those of a rank in a step, and `times` is how many it has.
    """
    is_whole = pl.col("stage").is_not_null() & pl.col("pair").is_null()
    spans = timeline.spans.filter((pl.col("kind") == "grad_reduce") & is_whole).select(*ROWS, "step", "stage")
    ranks = timeline.ranks.select("rank", "tp", "cp")
    return counted_reductions(spans.join(ranks, on="rank", how="left", maintain_order="left"))


def counted_reductions(placed: pl.DataFrame) -> pl.DataFrame:
    """Return rows of reductions with their number among those of their rank in a step, and how many these are."""
    counts = {"occurrence": pl.int_range(pl.len(), dtype=pl.Int32), "times": pl.len()}
    ordered = placed.sort(ROWS, maintain_order=True)
    return ordered.with_columns(**{name: count.over(*REDUCED, "rank") for name, count in counts.items()})


def observed_reductions(
    spans: pl.DataFrame, clocks: pl.DataFrame, most: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the observations of gradient reductions without a number, and how far apart their ranks leave.

    The last rank to enter one came before the first rank to leave it: one observation per pair of clocks. The members
    of a reduction are the replicas of one stage and tensor coordinate. Reductions that the members did not run equally
    often in a step are omitted, because it is unknown which belong together. Of many observations, about `most` of each
    pair of clocks are kept.
    """
    group = REDUCED[1:]
    some = pl.concat(
        [own.select(REDUCED).unique() for own in spans.iter_slices(ROWS_TOGETHER)] or [spans.select(REDUCED)]
    )
    names = some.unique().sort(REDUCED).unique(group, keep="first", maintain_order=True)
    observed, exits = [pl.DataFrame(schema=OBSERVATION_SCHEMA)], [pl.DataFrame(schema=EXITS_SCHEMA)]
    for own in names.iter_slices(1):
        of_group = spans.join(own, on=group, how="semi", nulls_equal=True, maintain_order="left")
        for found, added in zip((observed, exits), _reductions_of_group(of_group, clocks), strict=True):
            found.append(added)
        if sum(each.height for each in observed) > MOST_TOGETHER:
            observed = [thinned(pl.concat(observed), most)]
    return pl.concat(observed), pl.concat(exits)


def _reductions_of_group(spans: pl.DataFrame, clocks: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the same for one stage and tensor coordinate.

    All together, with their copies, would take half a gigabyte with 10,000 ranks and 100 steps.
    """
    key = [*REDUCED, "occurrence"]
    spans = spans.join(clocks, on="rank").sort("start_ns", maintain_order=True)
    spans = spans.filter((pl.col("times").min() == pl.col("times").max()).over(REDUCED))
    members = _of_clocks(spans, key)
    # All leave at about the same time, so the shortest stay is that of the last to enter, on whichever clock.
    stay_ns = pl.col("left_ns") - pl.col("entered_ns")
    members = members.sort(*key, "clock").with_columns(waited=stay_ns - stay_ns.min().over(key) <= LATE_NS)
    named = members.with_columns(slot="occurrence", call="step", name=_name_of_reduction())
    members, exits = with_exits(named.filter((pl.len() > 1).over(key)), REDUCED[1:])
    ends = ("clock", "entered_ns", "left_ns", "entered_rank", "left_rank", "step", "waited", *MEMBER_EXITS)
    if members.is_empty():
        return pl.DataFrame(schema=OBSERVATION_SCHEMA), exits
    return _compared(members.select(key).to_struct().rle_id().to_numpy(), members.select(ends)), exits


def _of_clocks(spans: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return one row per reduction and clock: when the last of its ranks entered and the first left, and which."""
    names = [*key, "clock"]
    places = spans.select("rank", *(name for name in names if name not in {"step", "occurrence"})).unique()
    if not places.drop("rank").is_duplicated().any():  # one rank each, as usual
        ends = {"entered_ns": "start_ns", "left_ns": "end_ns", "entered_rank": "rank", "left_rank": "rank"}
        return spans.select(*names, **ends)
    return spans.group_by(names, maintain_order=True).agg(
        entered_ns=pl.max("start_ns"),
        left_ns=pl.min("end_ns"),
        entered_rank=pl.col("rank").gather(pl.col("start_ns").arg_max()).first(),
        left_rank=pl.col("rank").gather(pl.col("end_ns").arg_min()).first(),
    )


def _name_of_reduction() -> pl.Expr:
    where = [
        pl.when(pl.col(name).is_not_null()).then(pl.format(f", {name} {{}}", name)).otherwise(pl.lit(""))
        for name in ("tp", "cp")
    ]
    return pl.concat_str(pl.format("gradient reductions of stage {}", "stage"), *where)


def _compared(call: Ints, members: pl.DataFrame) -> pl.DataFrame:
    """Return the observations of the reductions of one stage; `call` is the number of that of each member.

    The members of a call are next to each other, in the order of their clocks. Those of large calls form a ring, in
    which any two are connected through others, and some calls also connect all of them with the last one to enter. Long
    delays are used between two clocks without short ones, in calls of
    more than MOST_LONG / 8 clocks only the nearer ones: they would be most of the observations of a run.
    """
    size = np.bincount(call)[call]
    clock, waited = (members[name].to_numpy() for name in ("clock", "waited"))
    clocks = int(clock.max(initial=0)) + 1
    short = [
        np.unique(clock[source].astype(np.int64) * clocks + clock[target])
        for source, target, _ in _in_rings(call, size, waited)
    ]
    has_short = np.unique(np.concatenate(short))
    kept = []
    for source, target, is_near in _in_rings(call, size):
        pair = clock[source].astype(np.int64) * clocks + clock[target]
        is_open = is_near & ~np.isin(pair, has_short)
        is_kept = waited[source] | (size[source] <= MOST_REDUCERS) | is_open
        kept.append((source[is_kept], target[is_kept]))
    hub, spoke = _stars(call, size, waited)
    ends = zip(*kept, (hub, spoke), strict=True)
    by, to = (members[np.concatenate(rows)] for rows in ends)
    return pl.DataFrame(
        {
            "kind": pl.repeat("reduction", by.height, eager=True),
            "source": by["clock"],
            "target": to["clock"],
            "source_rank": by["entered_rank"],
            "target_rank": to["left_rank"],
            "step": by["step"],
            "microbatch": pl.repeat(None, by.height, dtype=pl.Int32, eager=True),
            "sent_ns": by["entered_ns"],
            "received_ns": to["left_ns"],
            "waited": by["waited"],
            "stay_ns": by["left_ns"] - by["entered_ns"],
            "by_exit": pl.repeat(value=True, n=by.height, eager=True),
            **{name: by[name] for name in MEMBER_EXITS},
            "target_constant_ns": to["constant_ns"],
        },
        schema=OBSERVATION_SCHEMA,
    )


def _in_rings(call: Ints, size: Ints, chosen: Bools | None = None) -> Iterator[tuple[Ints, Ints, Bools]]:
    """Yield members of calls, those that they are compared with, and whether these are near them in a large ring.

    One distance after the other: all together would take hundreds of bytes per member. `chosen` members only.
    """
    sizes: Ints = np.bincount(call)
    first: Ints = (np.cumsum(sizes) - sizes)[call]
    for number in range(1, MOST_REDUCERS + 1):
        near = number if number <= MOST_REDUCERS // 2 else number - MOST_REDUCERS - 1
        distance = np.where(size <= MOST_REDUCERS, number, near)
        is_there = distance < size if chosen is None else chosen & (distance < size)
        there = np.flatnonzero(is_there)
        target = first[there] + (there - first[there] + distance[there]) % size[there]
        yield there, target, np.abs(distance[there]) <= np.maximum(1, MOST_LONG // size[there])


def _stars(call: Ints, size: Ints, waited: Bools) -> tuple[Ints, Ints]:
    """Return the members of some large calls, and for each of them the last one to enter: sources and targets.

    In a ring of a thousand clocks, errors add up from neighbor to neighbor, and most clocks are never the last.
    """
    every = max(1, (int(call.max(initial=0)) + 1) // STARS)
    rows = np.flatnonzero((size > MOST_REDUCERS) & (call % every == 0))
    late = rows[waited[rows]]
    calls, first = np.unique(call[late], return_index=True)
    place = np.searchsorted(calls, call[rows])
    hub = late[first][np.minimum(place, max(0, len(calls) - 1))] if len(calls) else rows
    apart = np.abs(rows - hub)
    apart = np.minimum(apart, size[rows] - apart)
    is_far = apart > MOST_REDUCERS // 2
    return hub[is_far], rows[is_far]
