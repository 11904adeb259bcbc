"""Ranks that begin a step late because of what they do before it, while others wait to send to them.

A rank that has not posted its first receive keeps its neighbor in a blocking send, whose own neighbor is then blocked,
too. That is not the time of a send: what the late rank was recorded to do from when its neighbor wanted to send until
it posted the receive is the cause. It may have loaded data, or still have reduced the gradients of the step before,
or run its optimizer step.
What it was not recorded to do is unattributed. If the gate (graph/blocking_sends.py) of the next send in the chain is
the end of that one, replays show what it waits for; otherwise it waits while its receiver is blocked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.blocking_sends import CONTRADICTED_FRACTION
from stagescope.analysis.graph.replay_basis import LateReceivers
from stagescope.analysis.idle.delays import cover_delays

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis, UsualTransfers

    Integers = NDArray[np.int64]


class _Posted(NamedTuple):
    """The first action of the receiver of every send, when it posted its receive, and whether that was late."""

    first: Integers
    posted_ns: Integers
    is_late: NDArray[np.bool_]


def with_late_receivers(
    actions: Actions, basis: ReplayBasis, spans: pl.DataFrame, usual: UsualTransfers | None = None
) -> ReplayBasis:
    """Return a basis with the receivers of blocking sends that posted their first receive of a step late, and why.

    `usual` is what is usual for the transfers of the run; None: of these actions.
    """
    posted, ended_ns = _find_posted(actions, basis), basis.plan.sends.end_ns
    is_late = posted.is_late
    if usual is None and is_late.any():
        trusts = bool((ended_ns < posted.posted_ns)[is_late].mean() <= CONTRADICTED_FRACTION)
        basis = basis._replace(usual=basis.usual._replace(trusts_late=trusts))
    if not is_late.any() or not basis.usual.trusts_late:
        return basis
    return basis.with_late_receivers(_find_late_receivers(actions, basis, spans, posted))


def _find_posted(actions: Actions, basis: ReplayBasis) -> _Posted:
    sends, table = basis.plan.sends, actions.table
    rows = actions.needs[sends.need]
    consumer = rows["action"].to_numpy().astype(np.int64)
    first = consumer - table["place"].to_numpy()[consumer]
    posted_ns = rows["posted_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    # Posted before the first action of its rank, but after the message could have left.
    is_late = (posted_ns <= table["start_ns"].to_numpy()[first]) & (posted_ns > sends.free_ns)
    return _Posted(first, posted_ns, is_late)


def _find_late_receivers(
    actions: Actions, basis: ReplayBasis, spans: pl.DataFrame, posted: _Posted
) -> LateReceivers:
    sends, table, (first, posted_ns, is_late) = basis.plan.sends, actions.table, posted
    send = np.flatnonzero(is_late)
    rank = table["rank"].gather(first[send])
    windows = pl.DataFrame(
        {"rank": rank, "window_start_ns": sends.free_ns[send], "window_end_ns": posted_ns[send]}
    )
    covered = cover_delays(windows, spans, actions.reductions)
    known = np.array(
        [covered.loading_ns, covered.optimizer_ns, covered.other_ns, covered.reducing_ns, covered.replicas_ns]
    )
    # As far as the send lasted longer than a transfer; that its receiver was blocked in a send itself stays that.
    limit_ns = _limit_ns(basis)
    length_ns = np.minimum(posted_ns[send] - sends.free_ns[send] - covered.sends_ns, limit_ns[send])
    before_ns = np.cumsum(known, axis=0) - known
    parts = np.clip(length_ns - before_ns, 0, known)
    parts = np.vstack([parts, np.maximum(length_ns - parts.sum(axis=0), 0)])
    return _pass_on(actions, basis, _Late(send, first[send], parts), limit_ns)


class _Late(NamedTuple):
    """The fields of LateReceivers, with their times as one array of causes x sends."""

    send: Integers
    action: Integers
    parts_ns: Integers


def _limit_ns(basis: ReplayBasis) -> Integers:
    """Return for how long every send waited for something other than its transfer and its own reduction."""
    count = len(basis.plan.sends.need)
    rows = slice(len(basis.lag_ns) - 2 * count, len(basis.lag_ns) - count)
    limit_ns: Integers = np.maximum(basis.lag_ns[rows] - basis.prompt_ns[rows], 0)
    return limit_ns


def _pass_on(actions: Actions, basis: ReplayBasis, late: _Late, limit_ns: Integers) -> LateReceivers:
    """Return late receivers also for sends to ranks that are blocked in sends to them, if that is not their gate."""
    sends = basis.plan.sends
    ranks = actions.table["rank"]
    sender, receiver = (ranks.gather(each) for each in (sends.after, sends.consumer))
    every = pl.DataFrame({"sender": sender, "receiver": receiver, "free": sends.left_ns, "end": sends.end_ns})
    every = every.with_row_index("send").with_columns(pl.col("send").cast(pl.Int64))
    is_open = limit_ns > 0
    found = [late]
    while len(found[-1].send):
        last = found[-1]
        is_open[last.send] = False
        blocked = every[last.send].select(
            "free",
            receiver="sender",
            kept=pl.int_range(pl.len()),
            until=pl.Series(last.parts_ns.sum(axis=0)) + pl.col("free"),
        )
        waits = (
            every.filter(pl.Series(is_open))
            .sort("end")
            .join_asof(
                blocked.sort("free"),
                left_on="end",
                right_on="free",
                by="receiver",
                check_sortedness=False,
                suffix="_kept",
            )
        )
        since = pl.max_horizontal("free", "free_kept")
        waits = waits.with_columns(length=pl.min_horizontal("until", "end") - since).filter(
            pl.col("kept").is_not_null(), pl.col("length") > 0
        )
        send, kept = (waits[name].to_numpy().astype(np.int64) for name in ("send", "kept"))
        length_ns = np.minimum(waits["length"].to_numpy(), limit_ns[send])
        parts = last.parts_ns[:, kept]
        parts = (parts * (length_ns / np.maximum(parts.sum(axis=0), 1))).astype(np.int64)
        found.append(_Late(send, last.action[kept], parts))
    joined = (np.concatenate(each, axis=-1) for each in zip(*found, strict=True))
    send, action, parts_ns = joined
    return LateReceivers(send, action, *parts_ns)
