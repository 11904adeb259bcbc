"""Observations of clocks: pairs of events of which one cannot have happened after the other.

A message cannot arrive before it was sent, an action cannot begin before the action that produces its input has
ended, and no rank leaves a collective before the last one has entered it. Whatever the two clocks show, the first
event was not later than the second. Dapper (Google, 2010) bounds clock skew by the same order of client and server
events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.clocks.collectives import (
    HOST_TIMES,
    LATE_NS,
    Collectives,
    calls_of,
    collective_observations,
    match_calls,
)
from stagescope.clocks.exits import MEMBER_EXITS, OF_EXITS, with_exits
from stagescope.clocks.thinning import most_of_pair, thinned
from stagescope.model.messages import match_messages
from stagescope.model.pipelines import find_pipelines
from stagescope.vocabulary.kinds import COMPUTE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.clocks.evidence import Bools, Ints
    from stagescope.model import Timeline

ROWS = ("rank", "start_ns", "end_ns")
"""The order of a spans table."""

REDUCED = ("step", "stage", "tp", "cp")
"""What the members of a gradient reduction without a number have in common."""

WAITED_NS = 5_000
"""A receive that blocked for longer was waiting for its message, so its delay is that of the network path alone."""

MOST_REDUCERS = 16
"""In a reduction without a number, up to this many clocks are compared pair by pair; of more, each clock with the eight
next to it on either side. All pairs of a large reduction would be quadratic."""

STARS = 16
"""About as many calls of a stage compare all its replicas with the last one to enter, if they are more than that."""

MOST_LONG = 1_000
"""Long delays of one large reduction that are used in each direction of its ring, about. With 125 clocks next to each
other alone, bounds are 1.6 times as wide as with eight on either side."""

OBSERVATION_SCHEMA = {
    "kind": pl.String,
    "source": pl.Int32,
    "target": pl.Int32,
    "source_rank": pl.Int32,
    "target_rank": pl.Int32,
    "step": pl.Int32,
    "microbatch": pl.Int32,
    "sent_ns": pl.Int64,
    "received_ns": pl.Int64,
    "waited": pl.Boolean,
    "stay_ns": pl.Int64,
    "by_exit": pl.Boolean,
    "scatter_ns": pl.Int64,
    "constant_ns": pl.Int64,
    "target_constant_ns": pl.Int64,
}


NOT_COLLECTIVE = tuple(pl.lit(None).alias(name) for name in ("stay_ns", "by_exit", *OF_EXITS))
"""What only observations of collectives have."""

PAIR = (
    pl.min_horizontal("source", "target").alias("one"),
    pl.max_horizontal("source", "target").alias("other"),
)
"""Two clocks, whichever is the source."""


class Observed(NamedTuple):
    """What some pipelines of a run show about clocks: tables that those of other pipelines can be added to.

    `messages` and `actions` are observations (OBSERVATION_SCHEMA). `calls` are those of numbered collectives and
    `reductions` the rows of gradient reductions without a number; whom they were run with is known from all pipelines
    only.
    """

    messages: pl.DataFrame
    actions: pl.DataFrame
    calls: pl.DataFrame
    reductions: pl.DataFrame


class Gathered(NamedTuple):
    """All observations of a run, sorted by source, target and sent_ns, and its collectives.

    Columns of the observations: kind (message, action, collective or reduction), source and target (clocks),
    source_rank, target_rank, step, microbatch, sent_ns (on the source's clock), received_ns (on the target's clock),
    waited (the receiver was blocked, so the delay is short), stay_ns (how long the source was in a collective), by_exit
    (exits of both are compared) and scatter_ns, constant_ns and target_constant_ns (how far apart ranks leave it:
    exits.py). The first event was not later than the second.
    `exits` has one row per group of collectives (EXITS_SCHEMA).
    """

    table: pl.DataFrame
    collectives: Collectives
    exits: pl.DataFrame


class PartOfRun(NamedTuple):
    """What is known of a whole run when one part of it is looked at.

    `groups` are those of collectives on several clocks, `names_peers` is whether any transfer names its peer, and
    `clocks` the number of clocks.
    """

    groups: pl.Series
    names_peers: bool
    clocks: int


def observe(timeline: Timeline, clocks: pl.DataFrame, part: PartOfRun | None = None) -> Observed:
    """Return what a run shows about clocks, or some of its pipelines: all that are on the same clocks.

    `clocks` has the columns rank and clock (a number). Actions are used only between clocks without messages: the
    message lies between the two actions and is tighter.
    """
    messages = _between_clocks(_messages(_across_clocks(timeline.spans, clocks)), clocks)
    joined = messages.select(PAIR).unique()
    pipelines = find_pipelines(
        timeline.spans, timeline.ranks, names_peers=None if part is None else part.names_peers
    )
    actions = _between_clocks(_actions(timeline.spans, pipelines, clocks, joined), clocks)
    actions = actions.with_columns(PAIR).join(joined, on=["one", "other"], how="anti").drop("one", "other")
    most = most_of_pair(clocks["clock"].n_unique() if part is None else part.clocks)
    return Observed(
        thinned(messages, most),
        thinned(actions, most),
        calls_of(timeline.spans, None if part is None else part.groups),
        _reductions_of(timeline),
    )


def gather_observations(
    parts: Sequence[Observed], diagnostics: pl.DataFrame, clocks: pl.DataFrame
) -> Gathered:
    """Return all observations of a run; `diagnostics` are those of the run, `clocks` as in `observe`."""
    messages = pl.concat(part.messages for part in parts)
    # Two pipelines may be on the same two clocks, and only one of them may have messages.
    joined = messages.select(PAIR).unique()
    actions = pl.concat(part.actions for part in parts).with_columns(PAIR)
    actions = actions.join(joined, on=["one", "other"], how="anti", maintain_order="left").drop(
        "one", "other"
    )
    calls = pl.concat(part.calls for part in parts).sort(ROWS, maintain_order=True)
    reductions = pl.concat(part.reductions for part in parts).sort(ROWS, maintain_order=True)
    collectives = match_calls(calls, diagnostics, clocks)
    host_timed = diagnostics.filter(code=HOST_TIMES)["rank"].drop_nulls()
    ways = [set(messages[way].unique().to_list()) for way in ("source", "target")]
    messaging = pl.Series("clock", sorted(ways[0] & ways[1]), pl.Int32)
    numbered, exits_of_numbered = collective_observations(collectives, host_timed, messaging)
    numbered = numbered.select(pl.col(name).cast(dtype) for name, dtype in OBSERVATION_SCHEMA.items())
    unnumbered, exits = _reductions(reductions, clocks)
    together = thinned(pl.concat([numbered, unnumbered]), most_of_pair(clocks["clock"].n_unique()))
    every = pl.concat([messages, actions, together])
    return Gathered(
        every.sort("source", "target", "sent_ns", "received_ns", maintain_order=True),
        collectives,
        pl.concat([exits, exits_of_numbered]),
    )


def _across_clocks(spans: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers to and from other clocks: matching all others would take longer than the rest."""
    transfers = spans.filter(pl.col("kind").is_in(TRANSFERS) & pl.col("peer").is_not_null())
    ends = transfers.select("rank", "peer").unique()
    of_rank, of_peer = clocks.select("rank", "clock"), clocks.select(peer="rank", clock_of_peer="clock")
    away = (
        ends.join(of_rank, on="rank")
        .join(of_peer, on="peer")
        .filter(pl.col("clock") != pl.col("clock_of_peer"))
    )
    return transfers.join(away.select("rank", "peer"), on=["rank", "peer"], how="semi", maintain_order="left")


def _messages(spans: pl.DataFrame) -> pl.DataFrame:
    blocked_from, blocked_to = (
        pl.coalesce("wait_start_ns", "recv_start_ns"),
        pl.coalesce("wait_end_ns", "recv_end_ns"),
    )
    return match_messages(spans).select(
        pl.lit("message").alias("kind"),
        pl.col("source").alias("source_rank"),
        pl.col("target").alias("target_rank"),
        "step",
        "microbatch",
        pl.col("send_start_ns").alias("sent_ns"),
        pl.col("recv_end_ns").alias("received_ns"),
        (blocked_to - blocked_from > WAITED_NS).alias("waited"),
        *NOT_COLLECTIVE,
    )


def _actions(
    spans: pl.DataFrame, pipelines: pl.DataFrame, clocks: pl.DataFrame, joined: pl.DataFrame
) -> pl.DataFrame:
    """Return the observations that follow from the order of actions: forwards down the stages, backwards up.

    Only pipelines are looked at that have neighboring stages on clocks without messages between them; `joined` are
    the pairs of clocks with messages. Only actions on the compute lane count: the host may launch an action before
    its input exists. An action that occurs twice (ranks of one stage that no coordinate distinguishes) is omitted,
    because the partner is ambiguous.
    """
    actions = spans.filter(
        (pl.col("lane") == COMPUTE) & pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    )
    if actions.is_empty():
        return pl.DataFrame(schema=OBSERVATION_SCHEMA).drop("source", "target")
    kind = pl.col("kind").cast(pl.String).replace("backward_input", "backward")
    silent = _without_messages(actions.select("rank", "stage").unique(), pipelines, clocks, joined)
    named = actions.join(silent, on="rank").with_columns(kind=kind)
    key = ["pipeline", "step", "kind", "stage", "microbatch"]
    named = named.filter(pl.col("kind").is_in(["forward", "backward"])).filter(pl.len().over(key) == 1)
    away = pl.when(pl.col("kind") == "forward").then(1).otherwise(-1).cast(pl.Int32)
    makers = named.select(
        "pipeline",
        "step",
        "kind",
        "microbatch",
        pl.col("stage") + away,
        source_rank="rank",
        sent_ns="end_ns",
    )
    takers = named.select(*key, target_rank="rank", received_ns="start_ns")
    return makers.join(takers, on=key).select(
        pl.lit("action").alias("kind"),
        "source_rank",
        "target_rank",
        "step",
        "microbatch",
        "sent_ns",
        "received_ns",
        pl.lit(value=True).alias("waited"),
        *NOT_COLLECTIVE,
    )


def _without_messages(
    stages: pl.DataFrame, pipelines: pl.DataFrame, clocks: pl.DataFrame, joined: pl.DataFrame
) -> pl.DataFrame:
    """Return the rows of the pipelines in which neighboring stages are on different clocks without messages."""
    placed = stages.join(pipelines, on="rank").join(clocks, on="rank")
    makers = placed.select("pipeline", pl.col("stage") + 1, source="clock")
    takers = placed.select("pipeline", "stage", target="clock")
    neighbors = makers.join(takers, on=["pipeline", "stage"]).filter(pl.col("source") != pl.col("target"))
    silent = neighbors.with_columns(PAIR).join(joined, on=["one", "other"], how="anti")
    return pipelines.join(silent.select("pipeline").unique(), on="pipeline", how="semi")


def _between_clocks(pairs: pl.DataFrame, clocks: pl.DataFrame) -> pl.DataFrame:
    found = pairs.join(clocks.select(source_rank="rank", source="clock"), on="source_rank").join(
        clocks.select(target_rank="rank", target="clock"), on="target_rank"
    )
    return found.filter(pl.col("source") != pl.col("target")).select(
        pl.col(name).cast(dtype) for name, dtype in OBSERVATION_SCHEMA.items()
    )


def _reductions_of(timeline: Timeline) -> pl.DataFrame:
    """Return the rows of gradient reductions without a number, with what identifies their members.

    `occurrence` counts those of a rank in a step, and `times` is how many it has.
    """
    is_whole = pl.col("stage").is_not_null() & pl.col("pair").is_null()
    spans = timeline.spans.filter((pl.col("kind") == "grad_reduce") & is_whole).select(*ROWS, "step", "stage")
    ranks = timeline.ranks.select("rank", "tp", "cp")
    placed = spans.join(ranks, on="rank", how="left", maintain_order="left")
    counts = {"occurrence": pl.int_range(pl.len(), dtype=pl.Int32), "times": pl.len()}
    ordered = placed.sort(ROWS, maintain_order=True)
    return ordered.with_columns(**{name: count.over(*REDUCED, "rank") for name, count in counts.items()})


def _reductions(spans: pl.DataFrame, clocks: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the observations of gradient reductions without a number, and how far apart their ranks leave.

    The last rank to enter one came before the first rank to leave it: one observation per pair of clocks. The members
    of a reduction are the replicas of one stage and tensor coordinate. Reductions that the members did not run equally
    often in a step are omitted, because it is unknown which belong together.
    """
    group = list(REDUCED)
    spans = spans.join(clocks, on="rank").sort("start_ns", maintain_order=True)
    spans = spans.filter((pl.col("times").min() == pl.col("times").max()).over(group))
    key = [*group, "occurrence"]
    members = _of_clocks(spans, key)
    # All leave at about the same time, so the shortest stay is that of the last to enter, on whichever clock.
    stay_ns = pl.col("left_ns") - pl.col("entered_ns")
    members = members.sort(*group, "occurrence", "clock").with_columns(
        waited=stay_ns - stay_ns.min().over(key) <= LATE_NS
    )
    named = members.with_columns(slot="occurrence", call="step", name=_name_of_reduction())
    members, exits = with_exits(named.filter((pl.len() > 1).over(key)), tuple(group[1:]))
    ends = ("clock", "entered_ns", "left_ns", "entered_rank", "left_rank", "step", "waited", *MEMBER_EXITS)
    parts = [
        _compared(own.select(key).to_struct().rle_id().to_numpy(), own.select(ends))
        for own in members.partition_by(group[1:], maintain_order=True)
    ]
    return pl.concat([pl.DataFrame(schema=OBSERVATION_SCHEMA), *parts]), exits


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
    first = (np.cumsum(np.bincount(call)) - np.bincount(call))[call]
    rows = np.arange(len(call))
    sources, targets, near_ones = [], [], []
    for number in range(1, MOST_REDUCERS + 1):
        near = number if number <= MOST_REDUCERS // 2 else number - MOST_REDUCERS - 1
        distance = np.where(size <= MOST_REDUCERS, number, near)
        there = rows[distance < size]
        sources.append(there)
        targets.append((first + (rows - first + distance) % size)[there])
        near_ones.append((np.abs(distance) <= np.maximum(1, MOST_LONG // size))[there])
    source, target, is_near = (np.concatenate(parts) for parts in (sources, targets, near_ones))
    clock, waited = (members[name].to_numpy() for name in ("clock", "waited"))
    pair = clock[source].astype(np.int64) * (int(clock.max(initial=0)) + 1) + clock[target]
    has_short = np.unique(pair[waited[source]])
    is_open = is_near.astype(bool) & ~np.isin(pair, has_short)
    kept = waited[source] | (size[source] <= MOST_REDUCERS) | is_open
    hub, spoke = _stars(call, size, waited)
    by, to = (members[np.concatenate(ends)] for ends in ((source[kept], hub), (target[kept], spoke)))
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
