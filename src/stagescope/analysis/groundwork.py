"""What several analyses of one run rest on, each part made once and only when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.graph.actions import Actions, find_actions
from stagescope.analysis.graph.binding_constraints import find_binding_constraints
from stagescope.analysis.graph.critical_path import find_critical_path
from stagescope.analysis.graph.latest_inputs import LatestInputs, find_latest_inputs
from stagescope.analysis.graph.replay_basis import ReplayBasis, find_replay_basis
from stagescope.analysis.idle.intervals import find_idle_intervals
from stagescope.analysis.idle.ledger import Ledger, build_ledger
from stagescope.analysis.prediction.ideal import Ideal, lay_ideal
from stagescope.model.coverage import unite
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from stagescope.analysis.report import Windows
    from stagescope.model import Timeline


@dataclass(frozen=True)
class Groundwork:
    """What is known of all steps of a timeline whose pipelines can be measured (analysis/completeness/comparable.py).

    For a large run every part takes seconds. Rows of spans that the tables name are those of this timeline.
    """

    timeline: Timeline
    windows: Windows

    @cached_property
    def actions(self) -> Actions:
        """What find_actions returns."""
        return find_actions(self.timeline, self.windows.pipelines)

    @cached_property
    def busy(self) -> pl.DataFrame:
        """What unite returns for the spans on the compute lane."""
        computing = self.timeline.spans.lazy().filter(pl.col("lane") == COMPUTE)
        return unite(computing.select("rank", "start_ns", "end_ns").collect())

    @cached_property
    def basis(self) -> ReplayBasis:
        """What find_replay_basis returns."""
        return find_replay_basis(self.actions)

    @cached_property
    def inputs(self) -> LatestInputs:
        """What find_latest_inputs returns."""
        return find_latest_inputs(self.actions)

    @cached_property
    def ledger(self) -> Ledger:
        """What build_ledger returns, for all steps."""
        return build_ledger(self.actions, self.basis)

    @cached_property
    def ideal(self) -> Ideal:
        """What lay_ideal returns, under the schedule that the run declared if all ranks declared the same."""
        return lay_ideal(self.actions, _only(self.timeline.ranks["schedule"]))

    @cached_property
    def critical_path(self) -> pl.DataFrame:
        """What find_critical_path returns."""
        binding_constraints = find_binding_constraints(self.actions, self.basis.plan, self.basis.lag_ns)
        return find_critical_path(self.actions, binding_constraints, self.inputs, self.busy)

    @cached_property
    def idle_intervals(self) -> pl.DataFrame:
        """What find_idle_intervals returns."""
        return find_idle_intervals(self.windows.bubbles, self.busy, self.actions, self.inputs)


def _only(values: pl.Series) -> str | None:
    present = values.drop_nulls().unique()
    return str(present[0]) if len(present) == 1 else None
