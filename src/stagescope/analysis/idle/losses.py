"""What each cause costs a step while the causes that are no one's fault are still there.

The ledger (ledger.py) removes reductions, transfers and jitter before it looks for slow ranks and stages. In a step
without transfers these delay more than they did: they hide transfers that the step would have waited for anyway. Here
they are removed first, so that their part is what the step would have saved without them:

    TW  no rank waits in a reduction for the last replica: as in the ledger, and so is everything before
    S5  every class of actions takes the median over the pipelines that do the same work in this step: its actions
        become shorter or longer in proportion
    S4  every kind takes the mean over the stages, likewise
    SR  no gradients are reduced before a send or between two actions
    S3  transfers take no time, no send blocks, and no action waits for a collective inside of it
    S2  every action takes the mean of its class times the length of its micro-batch
    T0  every micro-batch has the same length, and every pipeline the same amount of data: as in the ledger

    TW - S5 straggler, S5 - S4 stage imbalance, S4 - SR gradient reduction, SR - S3 exposed communication,
    S3 - S2 jitter, S2 - T0 data imbalance

The parts have the same sum as those of the ledger.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.graph.makespan_shares import ReplayCosts
from stagescope.analysis.graph.replay import replay_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.graph.step_groups import StepGroups
    from stagescope.analysis.idle.action_classes import ActionClasses

    Integers = NDArray[np.int64]

REMOVED = (
    "straggler",
    "stage_imbalance",
    "gradient_reduction",
    "exposed_communication",
    "jitter",
    "data_imbalance",
)
"""The causes in the order in which they are removed here."""


class Between(NamedTuple):
    """What the ledger has before and after these causes.

    `duration_ns` are the durations of actions without waits inside of them, `sends_ns` how long sends delay them and
    collectives keep them waiting, and `reduction_ns` how long reductions delay them, in TW; `before_ns` and `after_ns`
    are the lengths of all steps in TW and T0.
    """

    duration_ns: Integers
    sends_ns: Integers
    reduction_ns: Integers
    before_ns: Integers
    after_ns: Integers


def measure_step_losses(
    basis: ReplayBasis, groups: StepGroups, classes: ActionClasses, between: Between
) -> list[pl.Series]:
    """Return the nanoseconds of every cause in REMOVED for every step of `groups`, as columns of the table LEDGER."""
    replays = list_replays(basis, classes, *between[:3])
    ends_ns = (groups.last_of_ranks(replay_ranks(basis.plan, *costs)) for costs in replays)
    whole_ns = (np.rint(each).astype(np.int64) for each in ends_ns)
    totals = [between.before_ns, *whole_ns, between.after_ns]
    return [
        pl.Series(f"{name}_ns", more - less, dtype=pl.Int64)
        for name, (more, less) in zip(REMOVED, pairwise(totals), strict=True)
    ]


def list_replays(
    basis: ReplayBasis,
    classes: ActionClasses,
    duration_ns: Integers,
    sends_ns: Integers,
    reduction_ns: Integers,
) -> Iterator[ReplayCosts]:
    """Yield the costs of S5 to S2; the times of actions are those of Between."""
    balanced_ns, peer_ns, stage_ns = (
        classes.costs_ns(name) for name in ("balanced_ns", "peer_ns", "stage_ns")
    )
    to_peers, to_stages = (
        np.divide(each, balanced_ns, out=np.ones_like(balanced_ns), where=balanced_ns > 0)
        for each in (peer_ns, stage_ns)
    )
    # One after the other, so that no two of them take memory at once.
    yield ReplayCosts(duration_ns * to_peers + sends_ns + reduction_ns, basis.joined_ns)
    yield ReplayCosts(duration_ns * to_stages + sends_ns + reduction_ns, basis.joined_ns)
    yield ReplayCosts(duration_ns * to_stages + sends_ns, basis.apart_ns)
    yield ReplayCosts(duration_ns * to_stages, basis.free_ns)
    yield ReplayCosts(classes.fitted_ns() * to_stages, basis.free_ns)
