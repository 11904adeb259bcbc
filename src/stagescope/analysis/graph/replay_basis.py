"""The basis of every replay of measured actions: the plan of the replay, and how long results travel.

What a result waits for before it leaves is not travel: the reduction of gradients that runs before its send, and the
wait for the last replica in that reduction. Both are kept apart, by their rows among the lags. So is what a receiver
does that begins its step late (idle/late_receivers.py), while its neighbor is blocked in a send to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import polars as pl

from stagescope.analysis.graph.blocking_sends import find_blocking_sends
from stagescope.analysis.graph.reduction_waits import Waits
from stagescope.analysis.graph.replay import OPEN_NS, plan_replay
from stagescope.analysis.graph.transfer_lags import find_transfer_lags

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.blocking_sends import BlockingSends
    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.analysis.graph.transfer_lags import TransferLags, UsualLags
    from stagescope.model.diagnostics import Diagnostic

    Integers = NDArray[np.int64]

Lags = TypeVar("Lags", bound="NDArray[Any]")

TRANSFER_QUANTILE = 0.1
"""A blocking send takes as long as the shortest tenth of its rank; the rest of a longer one waits for the receiver."""


class LateReceivers(NamedTuple):
    """What receivers did that had not posted their first receive of a step when a neighbor wanted to send to them.

    All arrays have an entry per send that waited for that: its number in `sends`, the first action of the late
    receiver, and for how long it loaded data, ran the optimizer step, did other work, reduced gradients, waited for the
    last replica in that, and did nothing that was recorded, until it posted the receive.
    """

    send: Integers
    action: Integers
    data_loading_ns: Integers
    optimizer_ns: Integers
    other_work_ns: Integers
    gradient_reduction_ns: Integers
    data_parallel_wait_ns: Integers
    unattributed_ns: Integers

    @property
    def total_ns(self) -> Integers:
        """All of it."""
        total: Integers = np.sum(self[2:], axis=0, dtype=np.int64)
        return total

    def action_of_need(self, plan: ReplayPlan, needs: int) -> Integers:
        """Return the first action of the late receiver for every row of needs, -1 without one."""
        actions = np.full(needs, -1, dtype=np.int64)
        actions[plan.sends.need[self.send]] = self.action
        return actions


def no_late_receivers() -> LateReceivers:
    """Return none, for runs in which no one waits for a receiver that begins its step late."""
    return LateReceivers(*(np.empty(0, dtype=np.int64) for _ in LateReceivers._fields))


class UsualTransfers(NamedTuple):
    """What is usual for the transfers of a run: what sends wait for, and how long messages and blocking sends take.

    `gates` is that of BlockingSends, `lags` of TransferLags. `sends` has rank and usual_ns, how long a blocking send of
    the rank lasts. `waits_most`: sends mostly wait for their receivers. `trusts_late`: when receives were posted shows
    which receivers begin a step late (idle/late_receivers.py).
    """

    gates: int
    lags: UsualLags
    sends: pl.DataFrame
    waits_most: bool
    trusts_late: bool = True


class ReplayBasis(NamedTuple):
    """The results of plan_replay and find_transfer_lags for the same actions, and the diagnostics of both.

    All lags are as in ReplayPlan: `lag_ns` as measured, `prompt_ns` if no send waited for its receiver, `joined_ns` if
    none waited for a replica before it either, `apart_ns` nor for a reduction. The others are without these two as
    well: `async_ns` if no send blocked its rank, `free_ns` if transfers took no time. Negative lags stay: overlapped
    pairs pass results on before they end. `travel_ns` is how long the result of every row of needs travels, without
    waiting for the receiver. `held` is what messages waited for before they left, at the rows `held_row` of the lags.
    `late` is what senders waited for because receivers began their step late, until `with_late_receivers` nothing:
    `prompt_ns` then has the reductions of these receivers, `joined_ns` without the waits for replicas in them. `usual`
    is what is usual for transfers: of these actions, or as it was given.
    """

    plan: ReplayPlan
    lag_ns: Integers
    prompt_ns: Integers
    joined_ns: Integers
    apart_ns: Integers
    async_ns: Integers
    free_ns: Integers
    travel_ns: Integers
    held_row: Integers
    held: Waits
    diagnostics: tuple[Diagnostic, ...]
    late: LateReceivers
    usual: UsualTransfers

    @property
    def late_row(self) -> Integers:
        """The rows of the lags of sends to late receivers."""
        sends = len(self.plan.sends.need)
        row: Integers = len(self.lag_ns) - 2 * sends + self.late.send
        return row

    def with_late_receivers(self, late: LateReceivers) -> ReplayBasis:
        """Return the basis with what receivers do that begin their step late."""
        if not len(late.send):
            return self
        row = self._replace(late=late).late_row
        reduced_ns, replicas_ns = late.gradient_reduction_ns, late.data_parallel_wait_ns
        return self._replace(
            late=late,
            prompt_ns=_with(self.prompt_ns, row, reduced_ns + replicas_ns),
            joined_ns=_with(self.joined_ns, row, reduced_ns),
        )

    def without_late(self, lag_ns: Lags, *causes: str) -> Lags:
        """Return measured lags without what late receivers did, by the names of the causes."""
        for cause in causes:
            lag_ns = _with(lag_ns, self.late_row, -getattr(self.late, f"{cause}_ns"))
        return lag_ns

    def unblocked(self, lag_ns: Lags) -> Lags:
        """Return lags without waits for receivers as `reduced`, with late receivers as late as they were."""
        late_ns = self.late.total_ns - self.late.data_parallel_wait_ns
        return _with(self.reduced(lag_ns), self.plan.sends.need[self.late.send], late_ns)

    def reduced(self, lag_ns: Lags) -> Lags:
        """Return lags of transfers alone with the reductions before them, but without waits for replicas."""
        return _with(lag_ns, self.held_row, self.held.reduction_ns)

    def without_replicas(self, lag_ns: Lags) -> Lags:
        """Return measured lags without the waits for replicas."""
        return self.without_late(_with(lag_ns, self.held_row, -self.held.replicas_ns), "data_parallel_wait")

    def without_reductions(self, lag_ns: Lags) -> Lags:
        """Return measured lags without the reductions before transfers, of the sender or of a late receiver."""
        return self.without_late(_with(lag_ns, self.held_row, -self.held.reduction_ns), "gradient_reduction")


def find_replay_basis(actions: Actions, usual: UsualTransfers | None = None) -> ReplayBasis:
    """Return the basis of all replays of these actions; for a large run it takes seconds, so compute it once.

    `usual` is what is usual for the transfers of the run; None: of these actions.
    """
    sends = find_blocking_sends(actions, usual and usual.gates)
    plan, lags = plan_replay(actions, sends), find_transfer_lags(actions, sends, usual and usual.lags)
    usual = usual or _usual_transfers(actions, sends, lags)
    diagnostics = (*plan.diagnostics, *lags.diagnostics)
    row, held = _held(actions, sends)
    if not len(sends.need):
        lag_ns = lags.lag_ns
        free_ns = np.minimum(lag_ns, 0) if (lag_ns > 0).any() else lag_ns
        joined_ns = _with(lag_ns, row, held.reduction_ns)
        every_ns = _with(joined_ns, row, held.replicas_ns)
        lags_ns = (every_ns, every_ns, joined_ns, lag_ns, lag_ns, free_ns, lag_ns)
        return ReplayBasis(plan, *lags_ns, row, held, diagnostics, no_late_receivers(), usual)
    of_needs = lags.lag_ns[: actions.needs.height]
    transfer_ns = transfer_times(actions, sends, usual)
    travel_ns = of_needs.copy()
    routed = sends.is_only_path
    travel_ns[sends.need[routed]] += transfer_ns[routed]
    is_open, none = np.full(len(sends.need), OPEN_NS), np.zeros_like(transfer_ns)
    async_ns = np.concatenate([travel_ns, none, is_open])
    blocking_ns = np.concatenate([of_needs, transfer_ns, is_open])
    # Sends that mostly wait for receivers would not block with enough buffers; others block while they travel.
    apart_ns = async_ns if usual.waits_most else blocking_ns
    joined_ns = _with(apart_ns, row, held.reduction_ns)
    return ReplayBasis(
        plan,
        _with(lags.lag_ns, row, held.total_ns),
        _with(joined_ns, row, held.replicas_ns),
        joined_ns,
        apart_ns,
        async_ns,
        np.concatenate([np.minimum(of_needs, 0), none, is_open]),
        travel_ns,
        row,
        held,
        diagnostics,
        no_late_receivers(),
        usual,
    )


def _usual_transfers(actions: Actions, sends: BlockingSends, lags: TransferLags) -> UsualTransfers:
    """Return what is usual for the transfers of these actions."""
    lasting = pl.DataFrame({"rank": actions.table["rank"].gather(sends.after), "lasting": sends.lasting_ns})
    shortest = pl.col("lasting").quantile(TRANSFER_QUANTILE).cast(pl.Int64)
    usual = lasting.group_by("rank").agg(usual_ns=shortest).sort("rank")
    waited_ns = int((sends.left_ns - sends.free_ns).sum())
    return UsualTransfers(sends.gates, lags.usual, usual, waited_ns > int(sends.lasting_ns.sum()))


def _held(actions: Actions, sends: BlockingSends) -> tuple[Integers, Waits]:
    """Return what messages and blocking sends waited for before they left, and the rows of both among the lags."""
    of_needs, of_sends = actions.held, sends.held
    # What came by a blocking send alone is behind that send, which was held.
    kept = ~np.isin(of_needs.need, sends.carried)
    held = np.flatnonzero(of_sends.total_ns > 0)
    row = np.append(of_needs.need[kept], actions.needs.height + held)
    parts = zip(of_needs.waits, of_sends, strict=True)
    return row, Waits(*(np.append(messages[kept], blocked[held]) for messages, blocked in parts))


def _with(lag_ns: Lags, row: Integers, part_ns: Integers) -> Lags:
    """Return lags with a part added at some rows; the same array if there is none: nothing is replayed twice."""
    if not part_ns.any():
        return lag_ns
    changed: Lags = lag_ns.copy()
    changed[row] += part_ns
    return changed


def transfer_times(actions: Actions, sends: BlockingSends, usual: UsualTransfers) -> Integers:
    """Return how long every blocking send would have taken if it had waited for nothing."""
    lasting = pl.DataFrame({"rank": actions.table["rank"].gather(sends.after), "lasting": sends.lasting_ns})
    known = lasting.join(usual.sends, on="rank", how="left", maintain_order="left")
    times: Integers = known.select(pl.min_horizontal("lasting", "usual_ns")).to_series().to_numpy()
    return times
