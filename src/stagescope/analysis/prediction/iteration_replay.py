"""How long iterations would take with other durations, delays or transfers of the actions.

    iteration = start of a pipeline + its window, of the pipeline that ends last, + until the next iteration

Every pipeline is replayed from its own start, or sooner by what a change removes before it. What a slow or late
pipeline gains therefore counts only until another one is the last. The rest of the iteration stays as measured, apart
from what a change removes there.

Where steps overlap, as in ZB-V, all steps are replayed one after the other instead (iteration/chained_losses.py): a
rank that ends its window sooner begins the next step sooner, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.makespan_shares import ReplayCosts
from stagescope.analysis.graph.replay import replay_ranks
from stagescope.analysis.iteration.activities import ACTIVITIES
from stagescope.analysis.iteration.chained_losses import PAUSE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.iteration.chained_losses import StepChain
    from stagescope.analysis.prediction.what_if import Measured

    Floats = NDArray[np.float64]
    Times = NDArray[np.float64] | NDArray[np.int64]


@dataclass(frozen=True)
class IterationReplay:
    """The measured actions as they are replayed, and when each pipeline starts after the first one of its step."""

    measured: Measured
    offset_ns: NDArray[np.int64]
    chain: StepChain | None = None

    @property
    def duration_ns(self) -> Floats:
        """Duration of every action."""
        return self.measured.duration_ns

    @property
    def delay_ns(self) -> Floats:
        """How long after it could have started every action did."""
        return self.measured.launch_delay_ns

    @property
    def lag_ns(self) -> Times:
        """Transfer time of every need."""
        return self.measured.lag_ns

    def ends_ns(
        self, duration_ns: Times, delay_ns: Times, lag_ns: Times, sooner_ns: Times | None = None
    ) -> pl.DataFrame:
        """Return for each counted step when its last pipeline ends (`end_ns`), from the start of the first one.

        Pipelines begin `sooner_ns` before they did, in the rows of StepGroups.
        """
        lasting_ns = np.asarray(duration_ns + delay_ns, dtype=np.float64)
        ends_ns = replay_ranks(self.measured.plan, lasting_ns, lag_ns)
        begin_ns = self.offset_ns if sooner_ns is None else self.offset_ns - sooner_ns
        last_ns = self.measured.groups.last_of_ranks(ends_ns) + begin_ns
        steps = self.measured.groups.steps.with_columns(end_ns=last_ns).filter(self.measured.counted)
        return steps.group_by("step").agg(pl.max("end_ns")).sort("step")

    def chained_ns(self, duration_ns: Times, delay_ns: Times, lag_ns: Times, without: str) -> float | None:
        """Return the mean iteration where steps overlap, None where they do not; `without` an activity in the gaps."""
        if self.chain is None:
            return None
        gaps = self.chain.gaps
        # What delays first actions is a part of the gaps. Only a shorter launch is one of the change.
        shorter_ns = (self.delay_ns - delay_ns)[gaps.first]
        delay_ns = np.asarray(delay_ns, dtype=np.float64).copy()
        delay_ns[gaps.first] = np.maximum(gaps.before_ns["launch"] - np.maximum(shorter_ns, 0), 0)
        activities = [name for name in (*ACTIVITIES, PAUSE) if name != CHAINED_NAMES.get(without, without)]
        lasting = ReplayCosts(duration_ns + delay_ns, np.rint(lag_ns).astype(np.int64))
        counted = self.measured.groups.steps.filter(self.measured.counted)["step"]
        every = self.measured.groups.ranks["step"].unique().sort()
        lengths_ns = self.chain.iterations_ns(lasting, activities)[every.is_in(counted.implode()).to_numpy()]
        return float(lengths_ns.mean()) if len(lengths_ns) else 0.0

    def mean_end_ns(
        self, duration_ns: Times, delay_ns: Times, lag_ns: Times, sooner_ns: Times | None = None
    ) -> float:
        """Return the mean of `ends_ns` over the steps."""
        ends = self.ends_ns(duration_ns, delay_ns, lag_ns, sooner_ns)["end_ns"]
        return float(ends.sum()) / max(len(ends), 1)


CHAINED_NAMES = {"unattributed": PAUSE}
"""Parts of gaps by the name of the cause, where it is another one."""


def prepare_iteration_replay(measured: Measured, chain: StepChain | None = None) -> IterationReplay:
    """Return what replays of the iterations of the counted steps need; `chain` is from find_step_chain."""
    actions = measured.actions
    first = measured.groups.steps.select("step", first_ns=measured.groups.first_start_ns(actions.table))
    offset = first.select(pl.col("first_ns") - pl.col("first_ns").min().over("step"))
    return IterationReplay(measured, offset.to_series().to_numpy(), chain)
