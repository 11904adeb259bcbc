"""What the analyses of waiting take, made from a timeline in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analyze.bonds import Bonds, find_bonds
from stagescope.analyze.critical_path import find_critical_path
from stagescope.analyze.idle_gaps import find_idle_gaps
from stagescope.analyze.latest_inputs import find_latest_inputs
from stagescope.analyze.operations import Operations, find_operations
from stagescope.analyze.overlap import measure_overlap
from stagescope.analyze.phases import cut_phases
from stagescope.analyze.replay import plan_replay
from stagescope.analyze.slack import measure_slack
from stagescope.analyze.transfer_lags import find_transfer_lags
from stagescope.timeline import SPANS
from stagescope.timeline.bubbles import step_bubbles
from stagescope.timeline.coverage import unite
from stagescope.timeline.pipelines import find_pipelines
from stagescope.timeline.validate import conform

if TYPE_CHECKING:
    from stagescope.timeline import Timeline


def added(timeline: Timeline, *rows: dict) -> Timeline:
    """Return the timeline with spans added."""
    more = conform(pl.DataFrame(rows, infer_schema_length=None), SPANS)
    return timeline.with_spans(conform(pl.concat([timeline.spans, more]), SPANS))


def message(source: int, target: int, microbatch: int, sent_ns: int, arrived_ns: int) -> list[dict]:
    """Return both ends of a message between the stages of two ranks, forward where the target is the later one."""
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


def bonds_of(operations: Operations) -> Bonds:
    return find_bonds(operations, plan_replay(operations), find_transfer_lags(operations).lag_ns)


def phases_of(timeline: Timeline) -> pl.DataFrame:
    return cut_phases(timeline.spans, bubbles_of(timeline), busy_of(timeline))


def overlap_of(timeline: Timeline) -> pl.DataFrame:
    operations = find_operations(timeline)
    return measure_overlap(timeline.spans, bubbles_of(timeline), busy_of(timeline), operations)


def gaps_of(timeline: Timeline) -> pl.DataFrame:
    operations = find_operations(timeline)
    inputs = find_latest_inputs(operations)
    return find_idle_gaps(bubbles_of(timeline), busy_of(timeline), operations, inputs)


def path_of(timeline: Timeline) -> pl.DataFrame:
    operations = find_operations(timeline)
    inputs = find_latest_inputs(operations)
    return find_critical_path(operations, bonds_of(operations), inputs, busy_of(timeline))


def slack_of(timeline: Timeline) -> pl.DataFrame:
    """Return the slack of every operation beside what it is."""
    operations = find_operations(timeline)
    return operations.ops.join(measure_slack(operations, bonds_of(operations)), on=["op", "row"])
