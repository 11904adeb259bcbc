"""Where lost time comes from: every cause of the ledger, divided among the ranks, links and actions that it is on.

The ledger removes one cause after the other and replays the step each time; what the step becomes shorter by is divided
among the actions and transfers of its critical path (graph/makespan_shares.py). An action counts for its rank, a
transfer for its link. Two parts have no origin and no row: the schedule bubble, which is inherent, and what precedes an
action whose transfers were not recorded. A rank that is faster than others has negative parts.

The origin of a reduction of gradients is the rank that reduced them, whether it kept that rank from its next action or
a message from leaving. What a receiver does that begins its step late has the receiver as its origin. Waits for the
last replica in a reduction come from another pipeline and have no origin here.

A rank that is blocked in a send waits for its receiver, which may itself be blocked in a send. The origin is the rank
at the end of that chain, which computes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.blocking_sends import NO_GATES
from stagescope.analysis.graph.makespan_shares import MakespanShares, ReplayCosts, share_makespan
from stagescope.analysis.graph.replay import NONE
from stagescope.model.tables import Column, KindType, Table
from stagescope.vocabulary.causes import CAUSES
from stagescope.vocabulary.kinds import SENDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups

    Integers = NDArray[np.int64]

CauseType = pl.Enum([cause.name for cause in CAUSES])
BLOCKED, UNATTRIBUTED = "blocked_on_send", "unattributed"
REDUCED, REPLICAS = "gradient_reduction", "data_parallel_wait"
OF_RECEIVERS = (REDUCED, "data_loading", "optimizer", "other_work", UNATTRIBUTED)
"""Causes for which a link has the rank that did something before it received."""

ORIGINS = Table(
    "origins",
    "what one rank or link adds to one step of its pipeline by one cause",
    ("pipeline", "step", "cause", "rank"),
    (
        Column("pipeline", pl.Int32, "", "Smallest rank of the pipeline."),
        Column("step", pl.Int32, "", "Training step."),
        Column("cause", CauseType, "", "Name of the cause."),
        Column("rank", pl.Int32, "", "Rank that it comes from; of a link, the sender."),
        Column("peer", pl.Int32, "", "Receiver of the link; null: the rank itself.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of the actions, or of those that the transfers were for."),
        Column("kind", KindType, "", "Kind of these actions."),
        Column("added_ns", pl.Float64, "ns", "Time added to the step."),
    ),
)

LEAST_FRACTION = 1e-4
"""Causes below this fraction of a step are not divided: no one would see them."""

CHAINED_FRACTION = 0.5
"""A receiver that is itself blocked for at least this fraction of the time that its sender is passes the time on."""


class Removal(NamedTuple):
    """A cause, the costs with and without it, what it adds to every step, and the lengths of the steps."""

    cause: str
    more: ReplayCosts
    less: ReplayCosts
    added_ns: Integers
    window_ns: Integers

    def reaches(self, fraction: float) -> NDArray[np.bool_]:
        """Return in which steps the cause is more than this fraction of the step."""
        return np.abs(self.added_ns) > fraction * self.window_ns


def list_removals(replays: Sequence[ReplayCosts], spans_ns: Sequence[Integers]) -> list[Removal]:
    """Return the causes that can be divided; `replays` and `spans_ns` are those of the ledger, the window first."""
    names = [cause.name for cause in reversed(CAUSES)]
    every = [
        Removal(name, more, less, before - after, spans_ns[0])
        for name, (more, less), (before, after) in zip(
            names, pairwise(replays), pairwise(spans_ns), strict=False
        )
    ]
    return [each for each in every if each.reaches(LEAST_FRACTION).any()]


def find_origins(
    actions: Actions,
    basis: ReplayBasis,
    groups: StepGroups,
    removals: Sequence[Removal],
    receivers: Mapping[int, int] | None = None,
) -> pl.DataFrame:
    """Return the table ORIGINS of the given causes; `receivers` is from find_blocked_receivers."""
    parts, plan = [], basis.plan
    late = basis.late.action_of_need(plan, actions.needs.height)
    for removal in removals:
        cause, more, less, added_ns, _ = removal
        if cause == REPLICAS:
            continue
        shares = share_makespan(plan, groups, more, less, added_ns)
        shares = shares.chosen(removal.reaches(LEAST_FRACTION)[shares.step])
        # Summed one by one: the shares of all causes at once would be the peak memory of a report.
        parts.append(_summed(_part(actions, groups, cause, shares, late)))
    if not parts:
        return ORIGINS.empty()
    origins = pl.concat(parts)
    if receivers is not None and (origins["cause"] == BLOCKED).any():
        origins = _at_the_receiver(origins, receivers, is_gated=plan.sends.gates != NO_GATES)
    return _summed(origins).sort(ORIGINS.names[:-1])


def _summed(origins: pl.DataFrame) -> pl.DataFrame:
    return origins.group_by(ORIGINS.names[:-1]).agg(pl.sum("added_ns"))


def _part(
    actions: Actions, groups: StepGroups, cause: str, shares: MakespanShares, late: Integers
) -> pl.DataFrame:
    """Return the shares of one cause with their ranks, in the columns of ORIGINS.

    `late` is the first action of the late receiver for every need.
    """
    table, needs = actions.table, actions.needs
    is_link = shares.need != NONE
    action, ranks = shares.action, table["rank"].to_numpy()
    if cause == REDUCED:
        # The action whose gradients were reduced: the producer of the message, or the one before on the rank.
        before = action - (table["place"].to_numpy()[action] > 0)
        producer = np.append(needs["needs"].to_numpy(), NONE)[shares.need]
        action = np.where(is_link, producer, before)
    if cause in OF_RECEIVERS:
        receiver = np.append(late, NONE)[shares.need]
        action = np.where(is_link & (receiver != NONE), receiver, action)
        is_link = np.zeros(len(action), dtype=np.bool_)
    rank, peer = ranks[action], np.full(len(action), NONE, dtype=np.int32)
    peer[is_link] = rank[is_link]
    rank[is_link] = ranks[needs["needs"].to_numpy()[shares.need[is_link]]]
    frame = pl.DataFrame(
        {
            **groups.steps.select("pipeline", "step")[shares.step].to_dict(),
            "cause": pl.repeat(cause, len(action), dtype=CauseType, eager=True),
            "rank": pl.Series(rank, dtype=pl.Int32),
            "peer": pl.Series(peer, dtype=pl.Int32),
            "stage": table["stage"].gather(action),
            "kind": table["kind"].gather(action),
            "added_ns": pl.Series(shares.share_ns, dtype=pl.Float64),
        }
    ).with_columns(peer=pl.when(pl.col("peer") != NONE).then("peer"))
    if cause != UNATTRIBUTED:
        return frame
    is_untimed = actions.needs["is_remote"] & actions.needs["arrived_ns"].is_null()
    untimed = actions.needs["action"].filter(is_untimed)
    is_open = np.zeros(table.height, dtype=np.bool_)
    is_open[untimed.to_numpy()] = True
    return frame.filter(~pl.Series(is_open[action]))


def find_blocked_receivers(spans: pl.DataFrame) -> dict[int, int]:
    """Return for every rank that is blocked in sends the rank that it waits for, at the end of the chain."""
    waits = spans.filter(pl.col("kind").is_in(SENDS) & pl.col("peer").is_not_null()).select(
        "rank", "peer", waited_ns=pl.col("wait_end_ns") - pl.col("wait_start_ns")
    )
    blocked = waits.group_by("rank", "peer").agg(pl.sum("waited_ns")).filter(pl.col("waited_ns") > 0)
    most = blocked.sort("waited_ns", "peer", descending=[True, False]).unique("rank", keep="first")
    receiver = {rank: (peer, waited_ns) for rank, peer, waited_ns in most.iter_rows()}
    return {rank: _end_of_chain(rank, receiver) for rank in receiver}


def _at_the_receiver(origins: pl.DataFrame, receivers: Mapping[int, int], *, is_gated: bool) -> pl.DataFrame:
    """Return the origins with those of blocked sends at the ranks that they wait for; unknown ones are left out.

    With gates they are at receivers already, which may themselves be blocked.
    """
    is_blocked = pl.col("cause") == BLOCKED
    moved = (
        origins.filter(is_blocked)
        .with_columns(
            rank=pl.col("rank").replace_strict(
                receivers, default=pl.col("rank") if is_gated else None, return_dtype=pl.Int32
            ),
            peer=pl.lit(None, pl.Int32),
        )
        .filter(pl.col("rank").is_not_null())
    )
    return pl.concat([origins.filter(~is_blocked), moved])


def _end_of_chain(rank: int, receiver: dict[int, tuple[int, int]]) -> int:
    """Return the rank that the others wait for, from a blocked rank over its blocked receivers."""
    seen = {rank}
    at, waited_ns = receiver[rank]
    while at in receiver and at not in seen and receiver[at][1] >= CHAINED_FRACTION * waited_ns:
        seen.add(at)
        at, waited_ns = receiver[at]
    return at
