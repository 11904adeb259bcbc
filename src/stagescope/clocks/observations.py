"""Observations of clocks: pairs of events of which one cannot have happened after the other.

A message cannot arrive before it was sent, an action cannot begin before the action that produces its input has
ended, and no rank leaves a collective before the last one has entered it. Whatever the two clocks show, the first
event was not later than the second. Dapper (Google, 2010) bounds clock skew by the same order of client and server
events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.clocks.collectives import (
    HOST_TIMES,
    Collectives,
    calls_of,
    collective_observations,
    match_calls,
    some_calls,
)
from stagescope.clocks.exits import OF_EXITS
from stagescope.clocks.observation_table import OBSERVATION_SCHEMA, ROWS
from stagescope.clocks.reductions import counted_reductions, observed_reductions, reductions_of
from stagescope.clocks.thinning import most_of_pair, thinned
from stagescope.model.lazy import TableParts
from stagescope.model.messages import match_messages
from stagescope.model.pipelines import find_pipelines
from stagescope.vocabulary.kinds import COMPUTE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableSequence, Sequence

    from stagescope.model import Timeline

WAITED_NS = 5_000
"""A receive that blocked for longer was waiting for its message, so its delay is that of the network path alone."""

OF_TRANSFERS = (
    *ROWS, "kind", "peer", "step", "stage", "microbatch", "bytes", "wait_start_ns", "wait_end_ns",
)  # fmt: skip
MOST_REDUCTIONS, FEWEST_STEPS = 2_000_000, 128
"""More rows of reductions are not looked at, if those of as many steps remain: they take half a kilobyte each."""
MOST_TOGETHER = 2_000_000
"""More messages of some ranks are thinned while others are still looked at."""

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

    `groups` are those of collectives on several clocks, `names_peers` is whether any transfer names its peer, `clocks`
    the number of clocks, and `slices` how many times steps of the same ranks are looked at, others each time. If they
    are of times instead of steps (`in_time`), messages are looked at afterwards (joined_slices).
    """

    groups: pl.Series
    names_peers: bool
    clocks: int
    slices: int = 1
    in_time: bool = False


def observe(timeline: Timeline, clocks: pl.DataFrame, part: PartOfRun | None = None) -> Observed:
    """Return what a run shows about clocks, or some of its pipelines: all that are on the same clocks.

    `clocks` has the columns rank and clock (a number). Actions are used only between clocks without messages: the
    message lies between the two actions and is tighter.
    """
    transfers = _across_clocks(timeline.spans, clocks)
    is_later = part is not None and part.in_time
    matched = match_messages(transfers.clear() if is_later else transfers)
    messages = _between_clocks(_messages_of(matched), clocks)
    joined = messages.select(PAIR).unique()
    pipelines = find_pipelines(
        timeline.spans, timeline.ranks, names_peers=None if part is None else part.names_peers
    )
    actions = _between_clocks(_actions(timeline.spans, pipelines, clocks, joined), clocks)
    actions = actions.with_columns(PAIR).join(joined, on=["one", "other"], how="anti").drop("one", "other")
    most = most_of_pair(clocks["clock"].n_unique() if part is None else part.clocks)
    if part is not None:
        most = -(-most // part.slices)
    return Observed(
        thinned(messages, most),
        thinned(actions, most),
        calls_of(timeline.spans, None if part is None else part.groups),
        reductions_of(timeline),
    )


def transfers_between(timeline: Timeline, clocks: pl.DataFrame) -> pl.DataFrame:
    """Return what joined_slices needs of the transfers to and from other clocks, in the order of a spans table."""
    return _across_clocks(timeline.spans, clocks).drop_nulls("stage").select(OF_TRANSFERS)


def joined_slices(
    reductions: Iterable[pl.DataFrame],
    transfers: Iterable[pl.DataFrame],
    clocks: pl.DataFrame,
    part: PartOfRun,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the messages and the reductions of some ranks whose slices are of times, one after the other.

    Both are those of Observed. A message may begin in one slice and end in a later one, and reductions are counted
    through all of them. `transfers` are those of transfers_between in each slice.
    """
    most = most_of_pair(part.clocks)
    found: list[pl.DataFrame] = []
    waiting: list[pl.DataFrame] = []
    for own in transfers:
        ends = pl.concat([*waiting, own]).sort(ROWS, maintain_order=True)
        matched = match_messages(ends)
        is_matched = pl.int_range(pl.len()).is_in(
            pl.concat([matched["send_row"], matched["recv_row"]]).implode()
        )
        waiting = [ends.filter(~is_matched)]
        found.append(_between_clocks(_messages_of(matched), clocks))
        if sum(each.height for each in found) > MOST_TOGETHER:
            found = [thinned(pl.concat(found), most)]
    messages = pl.concat(found).sort("sent_ns", maintain_order=True)
    return thinned(messages, most), counted_reductions(pl.concat(reductions))


def gather_observations(
    parts: MutableSequence[Observed], diagnostics: pl.DataFrame, clocks: pl.DataFrame
) -> Gathered:
    """Return all observations of a run; `diagnostics` are those of the run, `clocks` as in `observe`.

    `parts` is emptied, and tables are freed as soon as they have been used: with 10,000 ranks and 100 steps, this takes
    the most memory of the alignment.
    """
    messages = pl.concat(part.messages for part in parts)
    # Two pipelines may be on the same two clocks, and only one of them may have messages.
    joined = messages.select(PAIR).unique()
    actions = pl.concat(part.actions for part in parts).with_columns(PAIR)
    actions = actions.join(joined, on=["one", "other"], how="anti", maintain_order="left").drop(
        "one", "other"
    )
    calls = some_calls(TableParts(parts, lambda part: part.calls)).sort(ROWS, maintain_order=True)
    reductions = _some_reductions(parts)
    parts.clear()
    collectives = match_calls(calls, diagnostics, clocks)
    del calls
    host_timed = diagnostics.filter(code=HOST_TIMES)["rank"].drop_nulls()
    ways = [set(messages[way].unique().to_list()) for way in ("source", "target")]
    messaging = pl.Series("clock", sorted(ways[0] & ways[1]), pl.Int32)
    most = most_of_pair(clocks["clock"].n_unique())
    numbered, exits_of_numbered = collective_observations(collectives, host_timed, messaging, most)
    reductions = reductions.sort(ROWS, maintain_order=True)
    unnumbered, exits = observed_reductions(reductions, clocks, most)
    del reductions
    together = pl.concat([numbered, unnumbered])
    del numbered, unnumbered
    every = pl.concat([messages, actions, thinned(together, most)])
    del messages, actions, together
    return Gathered(
        every.sort("source", "target", "sent_ns", "received_ns", maintain_order=True),
        collectives,
        pl.concat([exits, exits_of_numbered]),
    )


def _some_reductions(parts: Sequence[Observed]) -> pl.DataFrame:
    """Return the rows of reductions without a number: of many, those of every n-th step.

    A pair of clocks has an observation per step at most, and needs no more than a few hundred of them.
    """
    rows = sum(part.reductions.height for part in parts)
    steps = pl.concat([part.reductions["step"].unique() for part in parts]).unique().sort()
    every = max(1, min(rows // MOST_REDUCTIONS, len(steps) // FEWEST_STEPS))
    is_chosen = pl.col("step").is_in(steps.gather_every(every).implode(), nulls_equal=True)
    return pl.concat([part.reductions.filter(is_chosen) if every > 1 else part.reductions for part in parts])


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


def _messages_of(matched: pl.DataFrame) -> pl.DataFrame:
    blocked_from, blocked_to = (
        pl.coalesce("wait_start_ns", "recv_start_ns"),
        pl.coalesce("wait_end_ns", "recv_end_ns"),
    )
    return matched.select(
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
