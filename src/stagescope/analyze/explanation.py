"""Why the steps took as long as they did: every analysis once, over the steps in the totals of the report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from stagescope.analyze.bonds import find_bonds
from stagescope.analyze.critical_path import find_critical_path
from stagescope.analyze.ideal import lay_ideal
from stagescope.analyze.idle_shares import share_idle
from stagescope.analyze.latest_inputs import find_latest_inputs
from stagescope.analyze.ledger import CAUSES, build_ledger
from stagescope.analyze.operations import find_operations
from stagescope.analyze.overlap import measure_overlap
from stagescope.analyze.phases import cut_phases
from stagescope.analyze.replay_basis import find_replay_basis
from stagescope.analyze.replicas import find_replicas
from stagescope.analyze.stage_costs import measure_stage_costs, measure_stage_work
from stagescope.analyze.step_trend import find_step_trends
from stagescope.analyze.stragglers import find_stragglers
from stagescope.analyze.wins import find_wins
from stagescope.timeline.coverage import unite
from stagescope.timeline.messages import match_messages
from stagescope.vocabulary.kinds import COMPUTE, TRANSFERS

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analyze.ideal import Ideal
    from stagescope.analyze.ledger import Ledger
    from stagescope.analyze.operations import Operations
    from stagescope.analyze.replay_basis import ReplayBasis
    from stagescope.analyze.replicas import Replicas
    from stagescope.analyze.step_trend import StepTrends
    from stagescope.analyze.stragglers import Stragglers
    from stagescope.timeline import Timeline
    from stagescope.timeline.diagnostics import Diagnostic


@dataclass(frozen=True)
class Explanation:
    """All that explains the time of some steps; every table is declared beside the function that makes it.

    `ledger` (analyze/ledger.py), `idle` (IDLE_SHARES: the bubble by cause), `ideal` (the schedule that ran),
    `phases` (STEP_PHASES), `stage_costs`, `stage_work`, `overlap`, `critical_path`, `stragglers`, `trends`,
    `replicas`, and `wins` (WINS, the largest gain first).
    """

    ledger: Ledger
    idle: pl.DataFrame
    ideal: Ideal
    phases: pl.DataFrame
    stage_costs: pl.DataFrame
    stage_work: pl.DataFrame
    overlap: pl.DataFrame
    critical_path: pl.DataFrame
    stragglers: Stragglers
    trends: StepTrends
    replicas: Replicas
    wins: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]

    def idle_fractions(self) -> dict[str, float]:
        """Return what part of the window is idle, in all (idle_ns) and for each of CAUSES; {} without a window."""
        if self.idle.is_empty():
            return {}
        total = self.idle.row(-1, named=True)
        window_ns = total["window_ns"]
        return {name: total[name] / window_ns for name in ("idle_ns", *CAUSES)} if window_ns else {}


def explain(
    timeline: Timeline, bubbles: pl.DataFrame, pipelines: pl.DataFrame, steps: Collection[int]
) -> Explanation:
    """Return what explains the time of `steps`: those in the totals.

    `bubbles` is what step_bubbles returns for the timeline, `pipelines` what find_pipelines does. Never raises: of
    a timeline without jobs all tables are empty.
    """
    chosen = pl.col("step").is_in(list(steps))
    # Of transfers only messages are asked for from here on: without them far less is copied.
    counted = timeline.with_spans(timeline.spans.filter(chosen & ~pl.col("kind").is_in(TRANSFERS)))
    operations = find_operations(timeline, pipelines)
    computing = timeline.spans.lazy().filter(pl.col("lane") == COMPUTE)
    busy = unite(computing.select("rank", "start_ns", "end_ns").collect())
    messages = match_messages(timeline.spans).filter(chosen)
    windows = bubbles.filter(chosen)
    basis = find_replay_basis(operations)
    ledger = build_ledger(operations, basis)
    ideal = lay_ideal(operations, _only(timeline.ranks["schedule"]))
    stragglers = find_stragglers(counted, messages)
    trends = find_step_trends(counted, pipelines, messages)
    replicas = find_replicas(counted, pipelines)
    found = (operations, ledger, ideal, stragglers, trends, replicas)
    return Explanation(
        ledger=replace(ledger, steps=ledger.steps.filter(chosen), ranks=ledger.ranks.filter(chosen)),
        idle=share_idle(windows, ledger.ranks),
        ideal=ideal,
        phases=cut_phases(counted.spans, windows, busy),
        stage_costs=measure_stage_costs(counted.spans),
        stage_work=measure_stage_work(counted.spans),
        overlap=measure_overlap(timeline.spans, windows, busy, operations),
        critical_path=_critical_path(operations, basis, busy).filter(chosen),
        stragglers=stragglers,
        trends=trends,
        replicas=replicas,
        wins=find_wins(operations, stragglers.table, ideal.schedule, steps, basis),
        diagnostics=tuple(dict.fromkeys(each for one in found for each in one.diagnostics)),
    )


def _critical_path(operations: Operations, basis: ReplayBasis, busy: pl.DataFrame) -> pl.DataFrame:
    bonds = find_bonds(operations, basis.plan, basis.lag_ns)
    return find_critical_path(operations, bonds, find_latest_inputs(operations), busy)


def _only(values: pl.Series) -> str | None:
    present = values.drop_nulls().unique()
    return str(present[0]) if len(present) == 1 else None
