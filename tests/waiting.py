"""The analyses of waiting, from a timeline in one call each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.graph.actions import Actions, find_actions
from stagescope.analysis.graph.binding_constraints import BindingConstraints, find_binding_constraints
from stagescope.analysis.graph.critical_path import find_critical_path
from stagescope.analysis.graph.latest_inputs import find_latest_inputs
from stagescope.analysis.graph.replay import plan_replay
from stagescope.analysis.graph.slack import measure_slack
from stagescope.analysis.graph.transfer_lags import find_transfer_lags
from stagescope.analysis.idle.intervals import find_idle_intervals
from stagescope.analysis.idle.overlap import measure_overlap
from stagescope.analysis.idle.phases import cut_phases
from stagescope.model import SPANS
from stagescope.model.bubbles import step_bubbles
from stagescope.model.coverage import unite
from stagescope.model.pipelines import find_pipelines
from stagescope.model.validate import conform

if TYPE_CHECKING:
    from stagescope.model import Timeline


def added(timeline: Timeline, *rows: dict) -> Timeline:
    """Return the timeline with spans added."""
    more = conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)
    return timeline.with_spans(conform(pl.concat([timeline.spans, more]), SPANS))


def message(source: int, target: int, microbatch: int, sent_ns: int, arrived_ns: int) -> list[dict]:
    """Return both ends of a message between the stages of two ranks, forward if the target is the later one."""
    direction = "forward" if target > source else "backward"
    same = {"lane": "comm", "step": 0, "microbatch": microbatch, "start_ns": sent_ns, "end_ns": arrived_ns}
    return [
        {**same, "kind": f"send_{direction}", "rank": source, "stage": source, "peer": target},
        {**same, "kind": f"recv_{direction}", "rank": target, "stage": target, "peer": source},
    ]


def bubbles_of(timeline: Timeline) -> pl.DataFrame:
    return step_bubbles(timeline.spans, find_pipelines(timeline.spans, timeline.ranks))


def busy_of(timeline: Timeline) -> pl.DataFrame:
    return unite(timeline.spans.filter(pl.col("lane") == "compute"))


def constraints_of(actions: Actions) -> BindingConstraints:
    return find_binding_constraints(actions, plan_replay(actions), find_transfer_lags(actions).lag_ns)


def phases_of(timeline: Timeline) -> pl.DataFrame:
    return cut_phases(timeline.spans, bubbles_of(timeline), busy_of(timeline))


def overlap_of(timeline: Timeline) -> pl.DataFrame:
    actions = find_actions(timeline)
    return measure_overlap(timeline.spans, bubbles_of(timeline), busy_of(timeline), actions)


def idle_of(timeline: Timeline) -> pl.DataFrame:
    actions = find_actions(timeline)
    inputs = find_latest_inputs(actions)
    return find_idle_intervals(bubbles_of(timeline), busy_of(timeline), actions, inputs)


def path_of(timeline: Timeline) -> pl.DataFrame:
    actions = find_actions(timeline)
    inputs = find_latest_inputs(actions)
    return find_critical_path(actions, constraints_of(actions), inputs, busy_of(timeline))


def slack_of(timeline: Timeline) -> pl.DataFrame:
    """Return the actions with their slack."""
    actions = find_actions(timeline)
    return actions.table.join(measure_slack(actions, constraints_of(actions)), on=["action", "row"])
