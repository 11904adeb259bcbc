"""What fixes are made of: what was found out about a run, and a change of its actions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.collectives.meetings import MEETINGS
from stagescope.analysis.prediction.layer_layout import Unusual
from stagescope.analysis.prediction.outside_savings import NOTHING_OUTSIDE, OutsideSaving

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stagescope.analysis.idle.ledger import Ledger
    from stagescope.analysis.iteration.chained_losses import StepChain
    from stagescope.analysis.prediction.outside_savings import MeasuredIterations
    from stagescope.analysis.prediction.schedule_ranges import SchedulePredictions

    Floats = NDArray[np.float64]


class NotReplayed(NamedTuple):
    """What is known of pipelines that are not replayed, because a sample of the run has others.

    `windows` has step, pipeline, first_ns and last_ns, `stages` the ranks of the run with each of their stages: rank
    and stage.
    """

    windows: pl.DataFrame
    stages: pl.DataFrame


@dataclass(frozen=True)
class Evidence:
    """What candidates are made of.

    Tables are STRAGGLERS, OUTLIER_ACTIONS, MEETINGS, and LATE_RANKS with times per step; `spans` are of steps in the
    totals. `unrecorded_place` is where most unattributed time is and what it may be, `layers` those of each stage or
    their total, `is_incomplete` whether ranks may be missing, and `predictions` from predict_other_schedules, if known.
    `not_replayed` is what is known of pipelines whose actions are not among those that are replayed; None without any.
    """

    stragglers: pl.DataFrame
    outliers: pl.DataFrame
    late_ranks: pl.DataFrame
    ledger: Ledger
    iterations: MeasuredIterations
    spans: pl.DataFrame
    unrecorded_place: tuple[str, str] = ("", "")
    layers: tuple[int, ...] = ()
    is_incomplete: bool = False
    chain: StepChain | None = None
    predictions: SchedulePredictions | None = None
    meetings: pl.DataFrame = field(default_factory=MEETINGS.empty)
    not_replayed: NotReplayed | None = None

    @property
    def unusual(self) -> Unusual:
        """Ranks that are claimed to be slower than their replicas, and claimed outlier actions."""
        slow = self.stragglers.filter("is_claimed", pl.col("subject") == "rank", pl.col("finding") == "slow")
        return Unusual(tuple(slow["rank"].to_list()), tuple(self.outliers["row"].to_list()))


class Candidate(NamedTuple):
    """A change of the durations, delays and transfers of the actions; None: as measured.

    `outside` is what it saves outside the windows. A bound takes a cause away completely, which can be approached at
    most; the others reach what their peers show to be possible. `cause` is the column without its unit.
    `removes_outside`: outside of the windows, it removes all of its cause. `is_unknown`: another cause is as likely.
    `pipelines` are those that it changes; None: all.
    """

    cause: str
    change: str
    duration_ns: Floats | None = None
    delay_ns: Floats | None = None
    lag_ns: Floats | NDArray[np.int64] | None = None
    outside: OutsideSaving = NOTHING_OUTSIDE
    is_bound: bool = False
    condition: str = ""
    removes_outside: bool = False
    is_unknown: bool = False
    pipelines: frozenset[int] | None = None
