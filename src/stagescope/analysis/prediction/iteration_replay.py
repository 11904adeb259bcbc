"""How long iterations would take with other durations, delays or transfers of the actions.

    iteration = start of a pipeline + its window, of the pipeline that ends last, + until the next iteration

Every pipeline is replayed from its own start, or sooner by what a change removes before it. What a slow or late
pipeline gains therefore counts only until another one is the last. The rest of the iteration stays as measured, apart
from what a change removes there.

Where steps overlap, as in ZB-V, all steps are replayed one after the other instead (iteration/chained_losses.py): a
rank that ends its window sooner begins the next step sooner, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.makespan_shares import ReplayCosts
from stagescope.analysis.graph.replay import replay_ranks
from stagescope.analysis.iteration.activities import ACTIVITIES
from stagescope.analysis.iteration.chained_losses import PAUSE, SETTLED_NS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.iteration.chained_losses import StepChain
    from stagescope.analysis.prediction.what_if import Measured

    Floats = NDArray[np.float64]
    Times = NDArray[np.float64] | NDArray[np.int64]
    Costs = tuple[Times, Times, Times]
    """Durations, delays and lags."""


@dataclass(frozen=True)
class IterationReplay:
    """The measured actions as they are replayed, and when each pipeline starts after the first one of its step.

    `others` are the windows of pipelines that are not replayed: step, pipeline, and when they end after that
    (`last_ns`). None: all pipelines are replayed.
    """

    measured: Measured
    offset_ns: NDArray[np.int64]
    chain: StepChain | None = None
    others: pl.DataFrame | None = None

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

    def ends_ns(self, costs: Costs, sooner_ns: Times | None = None) -> pl.DataFrame:
        """Return when each replayed pipeline ends each counted step, from the start of the first one.

        Columns: step, pipeline and end_ns. Pipelines begin `sooner_ns` before they did, in the rows of StepGroups.
        """
        duration_ns, delay_ns, lag_ns = costs
        lasting_ns = np.asarray(duration_ns + delay_ns, dtype=np.float64)
        ends_ns = replay_ranks(self.measured.plan, lasting_ns, lag_ns)
        begin_ns = self.offset_ns if sooner_ns is None else self.offset_ns - sooner_ns
        last_ns = self.measured.groups.last_of_ranks(ends_ns) + begin_ns
        steps = self.measured.groups.steps.select(
            "step", "pipeline", end_ns=pl.Series(last_ns, dtype=pl.Float64)
        )
        return steps.filter(self.measured.counted)

    @cached_property
    def measured_ends_ns(self) -> pl.DataFrame:
        """The result of `ends_ns` without a change."""
        return self.ends_ns((self.duration_ns, self.delay_ns, self.lag_ns))

    def _ends_of_others_ns(
        self, others: pl.DataFrame, ends: pl.DataFrame, changed: frozenset[int] | None
    ) -> pl.DataFrame:
        """Return when `others` end, given when the replayed pipelines do.

        Those that change as well end sooner by what is usual among the replayed pipelines that change.
        """
        is_changed = pl.lit(value=True) if changed is None else pl.col("pipeline").is_in(changed)
        keys = ["step", "pipeline"]
        gains = self.measured_ends_ns.join(ends, on=keys, suffix="_after").filter(is_changed)
        usual = gains.group_by("step").agg(gain_ns=(pl.col("end_ns") - pl.col("end_ns_after")).median())
        known = others.join(usual, on="step", how="left")
        gain_ns = pl.when(is_changed).then(pl.col("gain_ns").fill_null(0.0)).otherwise(0.0)
        return known.select(*keys, end_ns=pl.col("last_ns") - gain_ns)

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
        self, costs: Costs, sooner_ns: Times | None = None, changed: frozenset[int] | None = None
    ) -> float:
        """Return when the last pipeline ends a counted step, from the start of the first one, on average.

        `changed` are the pipelines that a change is about, which others do not show; None: all.
        """
        ends = self.ends_ns(costs, sooner_ns)
        if self.others is not None:
            ends = pl.concat([ends, self._ends_of_others_ns(self.others, ends, changed)])
        last = ends.group_by("step").agg(pl.max("end_ns")).sort("step")
        return float(last["end_ns"].sum()) / max(last.height, 1)


CHAINED_NAMES = {"unattributed": PAUSE}
"""Parts of gaps by the name of the cause, where it is another one."""


def prepare_iteration_replay(
    measured: Measured, chain: StepChain | None = None, others: pl.DataFrame | None = None
) -> IterationReplay:
    """Return what replays of the iterations of the counted steps need; `chain` is from find_step_chain.

    `others` are windows of pipelines that are not replayed: step, pipeline, first_ns and last_ns.
    """
    actions = measured.actions
    first = measured.groups.steps.select("step", first_ns=measured.groups.first_start_ns(actions.table))
    every = first if others is None else pl.concat([first, others.select(first.columns)])
    begins = every.group_by("step").agg(begin_ns=pl.min("first_ns"))
    placed = first.join(begins, on="step", how="left", maintain_order="left")
    replay = IterationReplay(measured, (placed["first_ns"] - placed["begin_ns"]).to_numpy(), chain)
    if others is None:
        return replay
    ends = others.join(begins, on="step").with_columns(pl.col("last_ns") - pl.col("begin_ns"))
    return replace(replay, others=ends.join(_without_waits(replay), on="step", how="semi"))


def _without_waits(replay: IterationReplay) -> pl.DataFrame:
    """Return the counted steps in which no pipeline waits for its replicas: there, windows end in replays as they did.

    Other pipelines may have waited like those that are replayed, and it is unknown when they would have ended.
    """
    groups = replay.measured.groups
    costs = (replay.duration_ns + replay.delay_ns, replay.lag_ns)
    ended_ns = groups.last_of_ranks(replay_ranks(replay.measured.plan, *costs))
    sooner_ns = groups.window_ns(replay.measured.actions.table) - ended_ns
    counted = groups.steps.select("step", sooner_ns=sooner_ns).filter(replay.measured.counted)
    steps = counted.group_by("step").agg(pl.max("sooner_ns"))
    return steps.filter(pl.col("sooner_ns") <= SETTLED_NS)
