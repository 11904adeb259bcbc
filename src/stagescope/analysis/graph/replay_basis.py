"""The basis of every replay of measured actions: the plan of the replay, and how long results travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.blocking_sends import find_blocking_sends
from stagescope.analysis.graph.replay import OPEN_NS, plan_replay
from stagescope.analysis.graph.transfer_lags import find_transfer_lags

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.blocking_sends import BlockingSends
    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.model.diagnostics import Diagnostic

    Integers = NDArray[np.int64]


TRANSFER_QUANTILE = 0.1
"""A blocking send takes as long as the shortest tenth of its rank; the rest of a longer one waits for the receiver."""


class ReplayBasis(NamedTuple):
    """The results of plan_replay and find_transfer_lags for the same actions, and the diagnostics of both.

    All lags are as in ReplayPlan: `lag_ns` as measured, `prompt_ns` if no send waited for its receiver, `async_ns` if
    none blocked its rank, `free_ns` if transfers took no time. Negative lags stay: overlapped pairs pass results on
    before they end. `travel_ns` is how long the result of every row of needs travels, without waiting for the receiver.
    """

    plan: ReplayPlan
    lag_ns: Integers
    prompt_ns: Integers
    async_ns: Integers
    free_ns: Integers
    travel_ns: Integers
    diagnostics: tuple[Diagnostic, ...]


def find_replay_basis(actions: Actions) -> ReplayBasis:
    """Return the basis of all replays of these actions; for a large run it takes seconds, so compute it once."""
    sends = find_blocking_sends(actions)
    plan, lags = plan_replay(actions, sends), find_transfer_lags(actions, sends)
    diagnostics = (*plan.diagnostics, *lags.diagnostics)
    if not len(sends.need):
        lag_ns = lags.lag_ns
        free_ns = np.minimum(lag_ns, 0) if (lag_ns > 0).any() else lag_ns
        return ReplayBasis(plan, lag_ns, lag_ns, lag_ns, free_ns, lag_ns, diagnostics)
    of_needs = lags.lag_ns[: actions.needs.height]
    transfer_ns = _transfer_times(actions, sends)
    travel_ns = of_needs.copy()
    routed = sends.is_only_path
    travel_ns[sends.need[routed]] += transfer_ns[routed]
    # Sends that mostly wait for receivers would not block with enough buffers; others block while they travel.
    waited_ns = int((sends.left_ns - sends.free_ns).sum())
    is_open, none = np.full(len(sends.need), OPEN_NS), np.zeros_like(transfer_ns)
    async_ns = np.concatenate([travel_ns, none, is_open])
    blocking_ns = np.concatenate([of_needs, transfer_ns, is_open])
    return ReplayBasis(
        plan,
        lags.lag_ns,
        async_ns if waited_ns > int(sends.lasting_ns.sum()) else blocking_ns,
        async_ns,
        np.concatenate([np.minimum(of_needs, 0), none, is_open]),
        travel_ns,
        diagnostics,
    )


def _transfer_times(actions: Actions, sends: BlockingSends) -> Integers:
    """Return how long every blocking send would have taken if it had waited for nothing."""
    rank = actions.table["rank"].gather(sends.after)
    usual = pl.col("lasting").quantile(TRANSFER_QUANTILE).over("rank").cast(pl.Int64)
    lasting = pl.DataFrame({"rank": rank, "lasting": sends.lasting_ns})
    times: Integers = lasting.select(pl.min_horizontal("lasting", usual)).to_series().to_numpy()
    return times
