"""What several analyses of one run rest on, each part made once and only when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.graph.binding_constraints import find_bonds
from stagescope.analysis.graph.critical_path import find_critical_path
from stagescope.analysis.graph.latest_inputs import LatestInputs, find_latest_inputs
from stagescope.analysis.graph.operations import Operations, find_operations
from stagescope.analysis.graph.replay_basis import ReplayBasis, find_replay_basis
from stagescope.analysis.idle.intervals import find_idle_gaps
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
    def operations(self) -> Operations:
        """What find_operations returns."""
        return find_operations(self.timeline, self.windows.pipelines)

    @cached_property
    def busy(self) -> pl.DataFrame:
        """What unite returns for the spans on the compute lane."""
        computing = self.timeline.spans.lazy().filter(pl.col("lane") == COMPUTE)
        return unite(computing.select("rank", "start_ns", "end_ns").collect())

    @cached_property
    def basis(self) -> ReplayBasis:
        """What find_replay_basis returns."""
        return find_replay_basis(self.operations)

    @cached_property
    def inputs(self) -> LatestInputs:
        """What find_latest_inputs returns."""
        return find_latest_inputs(self.operations)

    @cached_property
    def ledger(self) -> Ledger:
        """What build_ledger returns, for all steps."""
        return build_ledger(self.operations, self.basis)

    @cached_property
    def ideal(self) -> Ideal:
        """What lay_ideal returns, under the schedule that the run declared if all ranks declared the same."""
        return lay_ideal(self.operations, _only(self.timeline.ranks["schedule"]))

    @cached_property
    def critical_path(self) -> pl.DataFrame:
        """What find_critical_path returns."""
        bonds = find_bonds(self.operations, self.basis.plan, self.basis.lag_ns)
        return find_critical_path(self.operations, bonds, self.inputs, self.busy)

    @cached_property
    def idle_gaps(self) -> pl.DataFrame:
        """What find_idle_gaps returns."""
        return find_idle_gaps(self.windows.bubbles, self.busy, self.operations, self.inputs)


def _only(values: pl.Series) -> str | None:
    present = values.drop_nulls().unique()
    return str(present[0]) if len(present) == 1 else None
