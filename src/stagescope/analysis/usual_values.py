"""What is usual in a run, as far as an analysis of its steps depends on it: learned once, from its sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stagescope.analysis.graph.replay_basis import UsualTransfers
    from stagescope.analysis.idle.action_costs import UsualCauses
    from stagescope.analysis.statistics.outlier_actions import UsualDurations


class UsualValues(NamedTuple):
    """What is usual for transfers, for the causes of lost time, and for how long actions take.

    `durations` is None where nothing is compared with it.
    """

    transfers: UsualTransfers
    causes: UsualCauses
    durations: UsualDurations | None = None
