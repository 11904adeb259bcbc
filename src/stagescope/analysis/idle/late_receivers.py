"""Ranks that begin a step late because of what they do before it, while others wait to send to them.

A rank that has not posted its first receive keeps its neighbor in a blocking send, whose own neighbor is then blocked,
too. That is not the time of a send: what the late rank was recorded to do from when its neighbor wanted to send until
it posted the receive is the cause. It may have loaded data, or still have reduced the gradients of the step before.
What it was not recorded to do is unattributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.blocking_sends import CONTRADICTED_FRACTION
from stagescope.analysis.graph.replay_basis import LateReceivers, no_late_receivers
from stagescope.analysis.idle.delays import cover_delays

if TYPE_CHECKING:
    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay_basis import ReplayBasis


def find_late_receivers(actions: Actions, basis: ReplayBasis, spans: pl.DataFrame) -> LateReceivers:
    """Return the receivers of blocking sends that posted their first receive of a step late, and why."""
    sends, table = basis.plan.sends, actions.table
    rows = actions.needs[sends.need]
    consumer = rows["action"].to_numpy().astype(np.int64)
    first = consumer - table["place"].to_numpy()[consumer]
    posted_ns = rows["posted_ns"].fill_null(np.iinfo(np.int64).min).to_numpy()
    # Posted before the first action of its rank, but after the message could have left.
    is_late = (posted_ns <= table["start_ns"].to_numpy()[first]) & (posted_ns > sends.free_ns)
    if not is_late.any() or (sends.end_ns < posted_ns)[is_late].mean() > CONTRADICTED_FRACTION:
        return no_late_receivers()
    send = np.flatnonzero(is_late)
    rank = table["rank"].gather(first[send])
    windows = pl.DataFrame(
        {"rank": rank, "window_start_ns": sends.free_ns[send], "window_end_ns": posted_ns[send]}
    )
    loads, sent, reduces, waits, others = cover_delays(windows, spans, actions.reductions)
    known = np.array([loads, others, reduces, waits])
    # As far as the send lasted longer than a transfer; that its receiver was blocked in a send itself stays that.
    count = len(sends.need)
    row = len(basis.lag_ns) - 2 * count + send
    limit_ns = np.maximum(basis.lag_ns[row] - basis.prompt_ns[row], 0)
    length_ns = np.minimum(posted_ns[send] - sends.free_ns[send] - sent, limit_ns)
    before_ns = np.cumsum(known, axis=0) - known
    parts = np.clip(length_ns - before_ns, 0, known)
    rest_ns = np.maximum(length_ns - parts.sum(axis=0), 0)
    return LateReceivers(send, rank.to_numpy().astype(np.int64), *list(parts), rest_ns)  # type: ignore[call-arg]  # four
