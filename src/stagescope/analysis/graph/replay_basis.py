"""The basis of every replay of measured actions: the plan of the replay, and how long results travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stagescope.analysis.graph.replay import plan_replay
from stagescope.analysis.graph.transfer_lags import find_transfer_lags

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.graph.replay import ReplayPlan
    from stagescope.model.diagnostics import Diagnostic


class ReplayBasis(NamedTuple):
    """The results of plan_replay and find_transfer_lags for the same actions, and the diagnostics of both."""

    plan: ReplayPlan
    lag_ns: NDArray[np.int64]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def free_ns(self) -> NDArray[np.int64]:
        """The lags if transfers took no time. Negative lags stay: overlapped pairs pass results on before they end."""
        return np.minimum(self.lag_ns, 0)


def find_replay_basis(actions: Actions) -> ReplayBasis:
    """Return the basis of all replays of these actions; for a large run it takes seconds, so compute it once."""
    plan, lags = plan_replay(actions), find_transfer_lags(actions)
    return ReplayBasis(plan, lags.lag_ns, (*plan.diagnostics, *lags.diagnostics))
