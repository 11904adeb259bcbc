"""Transfer lags: how long every result took from the end of its producer to its consumer, without waiting unread.

A receiver notices an arrival only when it looks. If it was already idle when the producer ended, the recorded arrival
is the real one, and lag = arrival - end of the producer is exact. If it was still busy, the result may have arrived
long before: that lag is only an upper bound, and the median of the exact lags of the same link is used instead if it is
smaller. A link is (sender, receiver, direction); without any exact lag, as into a slow rank that is never idle, the
median of all links is used, or the smallest bound of its own if that is smaller. A transfer that was late only while
its receiver was busy therefore counts with the median. If a receiver waits for a message that was queued behind another
one on its link, the recorded arrival is the real one as well. A result that came by a blocking send (blocking_sends.py)
took the time from the end of that send, which is an event of its own; usually none. So did a result whose message the
rank issued only after it had been blocked in another send.

A message that its rank sent only after it had waited for a reduction of gradients (reduction_waits.py) was held for
that time, which is no part of its lag: it travels from then on.

The first action of an overlapped pair may pass its result on before the pair ends, and the second may take its input
after the pair has started. Such a need has a negative lag: at most from the end of one pair to the start of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.blocking_sends import find_blocking_sends
from stagescope.analysis.graph.dependencies import DirectionType
from stagescope.analysis.graph.reduction_waits import find_actions_before_waits
from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.blocking_sends import BlockingSends

    Integers = NDArray[np.int64]


LEAST_WAIT_RATIO = 0.1
"""A receiver that waits this part of the usual lag of its link waits for the arrival, and not for its own overhead."""

SPACING_RATIO = 1.2
"""Messages of a busy link arrive at most this many times its usual lag after each other."""


class UsualLags(NamedTuple):
    """How long results usually travel.

    `everywhere_ns` is the median of all exact lags, None without one. `links` has the columns sender, receiver,
    direction and usual_ns.
    """

    everywhere_ns: float | None
    links: pl.DataFrame


class TransferLags(NamedTuple):
    """The lags of ReplayPlan, diagnostics, and what is usual: of these actions, or as it was given.

    The lag of a row of `needs` is 0 if nothing was transferred or no arrival was recorded, and negative if an
    overlapped pair passed on a result before it ended.
    """

    lag_ns: Integers
    diagnostics: tuple[Diagnostic, ...]
    usual: UsualLags


LINK = ("sender", "receiver", "direction")
_LINKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "sender": pl.Int32,
    "receiver": pl.Int32,
    "direction": DirectionType,
    "usual_ns": pl.Int64,
}


def find_transfer_lags(
    actions: Actions, sends: BlockingSends | None = None, usual: UsualLags | None = None
) -> TransferLags:
    """Return the lag of every need, how long each of `sends` lasts, and the lag of its gate.

    `sends` is from find_blocking_sends; None: it is computed here. `usual` is what is usual in the run; None: in these
    actions. A diagnostic counts unrecorded arrivals.
    """
    sends = find_blocking_sends(actions) if sends is None else sends
    lags = _lags_of_needs(actions, sends, usual)
    return lags._replace(lag_ns=np.concatenate([lags.lag_ns, sends.lasting_ns, sends.gate_lag_ns]))


def _lags_of_needs(actions: Actions, sends: BlockingSends, usual: UsualLags | None) -> TransferLags:
    table, needs = actions.table, actions.needs
    made_ns = table["end_ns"].to_numpy()[needs["needs"].to_numpy()]
    is_sent = np.zeros(needs.height, dtype=np.bool_)
    is_sent[sends.need[sends.is_only_path]] = True
    made_ns = _when_released(actions, made_ns)
    made_ns[sends.carried] = sends.end_ns[sends.carriers()]
    lag_ns = np.zeros(needs.height, dtype=np.int64)
    arrived = needs["arrived_ns"]
    known = np.flatnonzero(arrived.is_not_null().to_numpy())
    unknown = int((needs["is_remote"] & (needs["direction"] != "own") & arrived.is_null()).sum())
    message = "transfers between ranks were not recorded; they count as taking no time"
    diagnostics = (
        (Diagnostic("warning", message, count=unknown, code="transfers.not_recorded"),) if unknown else ()
    )
    if not len(known):
        usual = usual or UsualLags(None, pl.DataFrame(schema=_LINKS))
        return TransferLags(_within_pairs(table, needs, lag_ns, made_ns), diagnostics, usual)
    consumer, producer = (needs[name].to_numpy()[known] for name in ("action", "needs"))
    rank = table["rank"].to_numpy()
    # A receiver is busy until its blocking sends and its waits for reductions have ended, too.
    free_ns = table["end_ns"].to_numpy().copy()
    np.maximum.at(free_ns, sends.after, sends.end_ns)
    reduced, until_ns = find_actions_before_waits(table, actions.reductions)
    np.maximum.at(free_ns, reduced, until_ns)
    limit_ns = np.maximum(arrived.fill_null(0).to_numpy()[known] - made_ns[known], 0)
    is_first = table["place"].to_numpy()[consumer] == 0
    # Before its first action a rank may be busy with the step before: then it posts the receive late.
    posted_ns = needs["posted_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()[known]
    ready_ns = np.where(is_first, posted_ns, free_ns[np.maximum(consumer, 1) - 1])
    was_idle = ready_ns <= made_ns[known]
    seen = pl.DataFrame(
        {
            "sender": rank[producer],
            "receiver": rank[consumer],
            "direction": needs["direction"].gather(known),
            "limit_ns": limit_ns,
            "was_idle": was_idle,
            # A blocking send ends when its message has arrived.
            "least_ns": np.where(is_sent[known], 0, limit_ns),
        }
    )
    usual = usual or _usual_lags(seen)
    usual_ns = _usual_of(seen, usual)
    arrived_ns = arrived.fill_null(0).to_numpy()[known]
    waited_ns = arrived_ns - np.maximum(ready_ns, posted_ns)
    turn = np.cumsum(table["place"].to_numpy() == 0)[consumer]  # the receiver and the step
    queued = _queued(turn, rank[producer], _Times(made_ns[known], arrived_ns), usual_ns)
    is_exact = was_idle | (queued & (waited_ns > LEAST_WAIT_RATIO * usual_ns))
    lag_ns[known] = np.where(is_exact, limit_ns, np.minimum(limit_ns, usual_ns))
    return TransferLags(_within_pairs(table, needs, lag_ns, made_ns), diagnostics, usual)


def _usual_lags(seen: pl.DataFrame) -> UsualLags:
    """Return what is usual for these messages: the median of exact lags, or else the smallest bound of a link."""
    # The median, not the mean: one message that was delayed on a shared link must not lengthen all others.
    exact = pl.col("limit_ns").filter("was_idle")
    everywhere_ns: float | None = seen.select(exact.median()).item()
    unseen = pl.min_horizontal(pl.col("least_ns").min(), pl.lit(everywhere_ns, pl.Float64))
    usual = exact.median().fill_null(unseen).round().cast(pl.Int64)
    return UsualLags(everywhere_ns, seen.group_by(LINK).agg(usual_ns=usual).sort(LINK))


def _usual_of(seen: pl.DataFrame, usual: UsualLags) -> Integers:
    """Return the usual lag of the link of every message; on an unknown link, that of all links or its own bound."""
    unknown = pl.min_horizontal("least_ns", pl.lit(usual.everywhere_ns, pl.Float64)).round().cast(pl.Int64)
    found = seen.select(*LINK, "least_ns").join(usual.links, on=LINK, how="left", maintain_order="left")
    usual_ns: Integers = found.select(pl.col("usual_ns").fill_null(unknown)).to_series().to_numpy()
    return usual_ns


def _when_released(actions: Actions, made_ns: Integers) -> Integers:
    """Return when every result could leave: when it was made, or after the reduction that held it."""
    held = actions.held
    if len(held.need):
        made_ns[held.need] += held.waits.total_ns
    return made_ns


def _queued(turn: Integers, sender: Integers, times: _Times, usual_ns: Integers) -> NDArray[np.bool_]:
    """Return which messages came as soon as their link had passed on the one before of the step, for which they waited.

    Where a transfer begins only when its receiver is ready, the action between two messages separates them further.
    `turn` numbers receivers and steps.
    """
    order = np.lexsort((times.arrived_ns, sender, turn))
    follows = (turn[order[1:]] == turn[order[:-1]]) & (sender[order[1:]] == sender[order[:-1]])
    later, before_ns = order[1:][follows], times.arrived_ns[order[:-1][follows]]
    queued = np.zeros(len(turn), dtype=np.bool_)
    queued[later] = (before_ns > times.made_ns[later]) & (
        times.arrived_ns[later] - before_ns <= SPACING_RATIO * usual_ns[later]
    )
    return queued


class _Times(NamedTuple):
    """When results were made, and when they arrived."""

    made_ns: Integers
    arrived_ns: Integers


def _within_pairs(table: pl.DataFrame, needs: pl.DataFrame, lag_ns: Integers, made_ns: Integers) -> Integers:
    """Return lags; those of overlapped pairs are at most from the end of the producer to the start of the consumer."""
    is_pair = table["is_pair"].to_numpy()
    consumer, producer = (needs[name].to_numpy() for name in ("action", "needs"))
    of_pairs = np.flatnonzero(is_pair[consumer] | is_pair[producer])
    distance_ns = table["start_ns"].to_numpy()[consumer[of_pairs]] - made_ns[of_pairs]
    lag_ns[of_pairs] = np.minimum(lag_ns[of_pairs], distance_ns)
    return lag_ns
