"""What analysis found, as the viewer takes it: idle time by cause, critical path, ideal schedule, ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from stagescope.analyze.bonds import find_bonds
from stagescope.analyze.critical_path import find_critical_path
from stagescope.analyze.ideal import lay_ideal
from stagescope.analyze.idle_gaps import find_idle_gaps
from stagescope.analyze.latest_inputs import find_latest_inputs
from stagescope.analyze.ledger import CAUSES, DENOMINATOR, LEDGER, build_ledger
from stagescope.analyze.operations import find_operations
from stagescope.analyze.replay import plan_replay
from stagescope.analyze.transfer_lags import find_transfer_lags
from stagescope.export.viewer_data import ViewerExtras
from stagescope.timeline.bubbles import step_bubbles
from stagescope.timeline.coverage import unite
from stagescope.timeline.pipelines import find_pipelines
from stagescope.timeline.simulated import is_simulated
from stagescope.timeline.tables import SPANS
from stagescope.timeline.validate import conform
from stagescope.vocabulary.kinds import COMPUTE

if TYPE_CHECKING:
    from stagescope.analyze.ideal import Ideal
    from stagescope.analyze.operations import Operations
    from stagescope.timeline import Timeline

WAITS_FOR_COMPUTE = "waits for compute"
LEDGER_PARTS = ("ideal_work_ns", *CAUSES)
GAP_CAUSES: dict[str, tuple[str, ...]] = {
    "comm_exposed_ns": ("transfer",),
    "unexplained_ns": ("launch", "other work", "not known"),
}
"""Parts of the ledger whose time stands in idle gaps of causes of their own, which the picture can single out."""


def gather_extras(timeline: Timeline) -> ViewerExtras:
    """Return what analysis says of a timeline, for the viewer; nothing where there is no pipeline job.

    A simulated step is its own ideal, so that there is none to lay under it. The ledger is summed over all pipelines
    and steps.
    """
    pipelines = find_pipelines(timeline.spans, timeline.ranks)
    operations = find_operations(timeline, pipelines)
    if operations.ops.is_empty():
        return ViewerExtras()
    busy = unite(timeline.spans.filter(pl.col("lane") == COMPUTE))
    inputs = find_latest_inputs(operations)
    gaps = find_idle_gaps(step_bubbles(timeline.spans, pipelines), busy, operations, inputs)
    bonds = find_bonds(operations, plan_replay(operations), find_transfer_lags(operations).lag_ns)
    path = find_critical_path(operations, bonds, inputs, busy)
    ideal = None if is_simulated(timeline) else lay_ideal(operations, _only(timeline.ranks["schedule"]))
    return ViewerExtras(
        gaps=_gaps(gaps),
        critical_path=path.filter(pl.col("part") == "compute").select(
            "row", pl.lit(0, pl.Int64).alias("slack_ns")
        ),
        ideal=None if ideal is None else _ideal_spans(operations, ideal),
        objects={"ledger": _ledger(operations)},
    )


def _gaps(gaps: pl.DataFrame) -> pl.DataFrame:
    """Return the pieces of all idle gaps; a gap after a rank's last job is no wait and stays blank."""
    return gaps.filter(pl.col("cause").cast(pl.String) != "done").select(
        "rank",
        "step",
        "start_ns",
        "end_ns",
        pl.col("cause").cast(pl.String).replace("wait_compute", WAITS_FOR_COMPUTE).str.replace_all("_", " "),
        pl.col("waits_for_row").alias("waits_for"),
        pl.lit(None, pl.String).alias("text"),
    )


def _ideal_spans(operations: Operations, ideal: Ideal) -> pl.DataFrame | None:
    """Return the ideal's operations as spans, None where the schedule is not known."""
    laid = ideal.operations.filter(pl.col("ideal_start_ns").is_not_null())
    if laid.is_empty():
        return None
    facts = operations.ops.select("op", "rank", "kind", "step", "stage", "chunk", "microbatch")
    spans = laid.join(facts, on="op").select(
        "rank",
        pl.lit(COMPUTE).alias("lane"),
        *("kind", "step", "stage", "chunk", "microbatch"),
        pl.col("ideal_start_ns").alias("start_ns"),
        pl.col("ideal_end_ns").alias("end_ns"),
    )
    return conform(spans, SPANS)


def _ledger(operations: Operations) -> dict[str, Any]:
    totals = build_ledger(operations).steps.select(pl.sum("window_ns", *LEDGER_PARTS)).row(0, named=True)
    meanings = {column.name: column.meaning for column in LEDGER.columns}
    parts = [
        {
            "name": name.removesuffix("_ns"),
            "ns": totals[name],
            "meaning": meanings[name],
            "causes": list(GAP_CAUSES.get(name, ())),
        }
        for name in LEDGER_PARTS
    ]
    return {"denominator": DENOMINATOR, "total_ns": totals["window_ns"], "parts": parts}


def _only(values: pl.Series) -> str | None:
    present = values.drop_nulls().unique()
    return str(present[0]) if len(present) == 1 else None
