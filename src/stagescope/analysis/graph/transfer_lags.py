"""How long every result took from the end of its producer to its consumer, without the time it lay unread.

A receiver notes an arrival when it looks. Where it stood idle already when the producer ended, what it noted is the
arrival, and lag = arrival - end of the producer is exact. Where it was still busy, the result may have come
long before it looked: that lag is only an upper limit, and the median of the exact ones of the same link, if it
is smaller, is taken instead. A link is (sender, receiver, direction); one without any exact lag has the smallest
limit. So a transfer that was late only for a receiver that was busy when it began counts with the median.

The first of two overlapped actions may hand its result on before the pair ends, and the second may take its input after
the pair has begun. Such a need has a negative lag: it cannot have taken longer than from the end of one pair to the
start of the other.
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
    """A lag per row of `needs`, and what could not be told.

    It is 0 where nothing was transferred or no arrival recorded, and negative where overlapped actions passed on a
    result before both had ended.
    """

    lag_ns: Integers
    diagnostics: tuple[Diagnostic, ...]


def find_transfer_lags(actions: Actions) -> TransferLags:
    """Return the lag of every need, and a diagnostic for those of which the arrival was not recorded."""
    table, needs = actions.table, actions.needs
    lag_ns = np.zeros(needs.height, dtype=np.int64)
    arrived = needs["arrived_ns"]
    known = np.flatnonzero(arrived.is_not_null().to_numpy())
    unknown = int((needs["is_remote"] & (needs["direction"] != "own") & arrived.is_null()).sum())
    message = "needs between ranks have no recorded transfer; it counts as taking no time"
    said = (Diagnostic("warning", message, count=unknown),) if unknown else ()
    if not len(known):
        return TransferLags(_within_pairs(table, needs, lag_ns), said)
    consumer, producer = (needs[name].to_numpy()[known] for name in ("action", "needs"))
    end_ns, rank = table["end_ns"].to_numpy(), table["rank"].to_numpy()
    limit_ns = np.maximum(arrived.to_numpy()[known].astype(np.int64) - end_ns[producer], 0)
    is_first = table["place"].to_numpy()[consumer] == 0
    stood_idle = is_first | (end_ns[np.maximum(consumer, 1) - 1] <= end_ns[producer])
    seen = pl.DataFrame(
        {
            "sender": rank[producer],
            "receiver": rank[consumer],
            "direction": needs["direction"].gather(known),
            "limit_ns": limit_ns,
            "stood_idle": stood_idle,
        }
    )
    exact = pl.col("limit_ns").filter("stood_idle")
    usual = exact.median().fill_null(pl.col("limit_ns").min()).round().cast(pl.Int64)
    usual_ns = seen.select(usual.over("sender", "receiver", "direction")).to_series().to_numpy()
    lag_ns[known] = np.where(stood_idle, limit_ns, np.minimum(limit_ns, usual_ns))
    return TransferLags(_within_pairs(table, needs, lag_ns), said)


def _within_pairs(table: pl.DataFrame, needs: pl.DataFrame, lag_ns: Integers) -> Integers:
    """Return lags, those between overlapped pairs at most from the end of the producer to the start of the consumer."""
    is_pair = table["is_pair"].to_numpy()
    consumer, producer = (needs[name].to_numpy() for name in ("action", "needs"))
    concerned = np.flatnonzero(is_pair[consumer] | is_pair[producer])
    apart_ns = (
        table["start_ns"].to_numpy()[consumer[concerned]] - table["end_ns"].to_numpy()[producer[concerned]]
    )
    lag_ns[concerned] = np.minimum(lag_ns[concerned], apart_ns)
    return lag_ns
