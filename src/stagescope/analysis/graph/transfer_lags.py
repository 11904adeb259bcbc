"""Transfer lags: how long every result took from the end of its producer to its consumer, without waiting unread.

A receiver notices an arrival only when it looks. If it was already idle when the producer ended, the recorded arrival
is the real one, and lag = arrival - end of the producer is exact. If it was still busy, the result may have arrived
long before: that lag is only an upper bound, and the median of the exact lags of the same link is used instead if it is
smaller. A link is (sender, receiver, direction); without any exact lag, its smallest bound is used. A transfer that was
late only while its receiver was busy therefore counts with the median.

The first action of an overlapped pair may pass its result on before the pair ends, and the second may take its input
after the pair has started. Such a need has a negative lag: at most from the end of one pair to the start of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions

    Integers = NDArray[np.int64]


class TransferLags(NamedTuple):
    """One lag per row of `needs`, and diagnostics.

    It is 0 if nothing was transferred or no arrival was recorded, and negative if an overlapped pair passed on a result
    before it ended.
    """

    lag_ns: Integers
    diagnostics: tuple[Diagnostic, ...]


def find_transfer_lags(actions: Actions) -> TransferLags:
    """Return the lag of every need, and a diagnostic that counts unrecorded arrivals."""
    table, needs = actions.table, actions.needs
    lag_ns = np.zeros(needs.height, dtype=np.int64)
    arrived = needs["arrived_ns"]
    known = np.flatnonzero(arrived.is_not_null().to_numpy())
    unknown = int((needs["is_remote"] & (needs["direction"] != "own") & arrived.is_null()).sum())
    message = "transfers between ranks were not recorded; they count as taking no time"
    diagnostics = (
        (Diagnostic("warning", message, count=unknown, code="transfers.not_recorded"),) if unknown else ()
    )
    if not len(known):
        return TransferLags(_within_pairs(table, needs, lag_ns), diagnostics)
    consumer, producer = (needs[name].to_numpy()[known] for name in ("action", "needs"))
    end_ns, rank = table["end_ns"].to_numpy(), table["rank"].to_numpy()
    limit_ns = np.maximum(arrived.to_numpy()[known].astype(np.int64) - end_ns[producer], 0)
    is_first = table["place"].to_numpy()[consumer] == 0
    was_idle = is_first | (end_ns[np.maximum(consumer, 1) - 1] <= end_ns[producer])
    seen = pl.DataFrame(
        {
            "sender": rank[producer],
            "receiver": rank[consumer],
            "direction": needs["direction"].gather(known),
            "limit_ns": limit_ns,
            "was_idle": was_idle,
        }
    )
    # The median, not the mean: one message that was delayed on a shared link must not lengthen all others.
    exact = pl.col("limit_ns").filter("was_idle")
    usual = exact.median().fill_null(pl.col("limit_ns").min()).round().cast(pl.Int64)
    usual_ns = seen.select(usual.over("sender", "receiver", "direction")).to_series().to_numpy()
    lag_ns[known] = np.where(was_idle, limit_ns, np.minimum(limit_ns, usual_ns))
    return TransferLags(_within_pairs(table, needs, lag_ns), diagnostics)


def _within_pairs(table: pl.DataFrame, needs: pl.DataFrame, lag_ns: Integers) -> Integers:
    """Return lags; those of overlapped pairs are at most from the end of the producer to the start of the consumer."""
    is_pair = table["is_pair"].to_numpy()
    consumer, producer = (needs[name].to_numpy() for name in ("action", "needs"))
    of_pairs = np.flatnonzero(is_pair[consumer] | is_pair[producer])
    distance_ns = (
        table["start_ns"].to_numpy()[consumer[of_pairs]] - table["end_ns"].to_numpy()[producer[of_pairs]]
    )
    lag_ns[of_pairs] = np.minimum(lag_ns[of_pairs], distance_ns)
    return lag_ns
