"""The cases of tests/data/viewer/cases.json: queries and statistics that Python and the page must answer equally."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from places import DATA
from running_server import run_of
from stagescope.exporters.layers import AnalysisLayers
from stagescope.model import Timeline
from stagescope.viewer.tiles.levels import Part
from stagescope.viewer.tiles.query import QueryError
from stagescope.viewer.tiles.search import search_spans
from stagescope.viewer.tiles.statistics import select_statistics
from stagescope.vocabulary.kinds import BY_CODE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stagescope.viewer.tiles.run import RunView

MOST = 1000
OPTIONAL = ("step", "stage", "chunk", "microbatch", "pair", "peer")
SUMS = ("row_count", "span_count", "sum_ns", "busy_ns", "idle_ns", "wait_ns", "waits")


def read_cases() -> dict[str, Any]:
    """Return the file of cases."""
    return dict(json.loads((DATA / "viewer" / "cases.json").read_text(encoding="utf-8")))


def run_of_cases(cases: Mapping[str, Any], folder: Path) -> RunView:
    """Return the run of the cases as the local server has it."""
    ranks = [one["rank"] for one in cases["ranks"]]
    rows = [
        {
            "rank": ranks[span["row"]],
            "kind": span["kind"],
            "lane": span["lane"],
            "start_ns": span["start"],
            "end_ns": span["start"] + span["duration"],
            "wait_start_ns": span["start"] + span["wait"] if "wait" in span else None,
            "wait_end_ns": span["start"] + span["wait"] + span["wait_duration"] if "wait" in span else None,
            "name": span.get("name"),
            **{name: span.get(name) for name in OPTIONAL},
        }
        for span in cases["spans"]
    ]
    timeline = Timeline.from_spans(pl.DataFrame(rows, infer_schema_length=None))
    machines = pl.DataFrame(cases["ranks"], schema={"rank": pl.Int32, "machine": pl.String})
    table = (
        timeline.ranks.drop("machine").join(machines, on="rank", how="left").select(timeline.ranks.columns)
    )
    idle = pl.DataFrame(
        [
            {
                "rank": ranks[one["row"]],
                "step": 0,
                "start_ns": one["start"],
                "end_ns": one["start"] + one["duration"],
                "waiting_for": one["waiting_for"],
            }
            for one in cases["idle"]
        ]
    ).with_columns(
        pl.col("rank").cast(pl.Int32), waits_for=pl.lit(None, pl.UInt32), text=pl.lit(None, pl.String)
    )
    return run_of(replace(timeline, ranks=table), folder, AnalysisLayers(idle=idle))


def query_result(run: RunView, query: str) -> dict[str, Any]:
    """Return `ids` of the matches in ascending order, or the `error` of an invalid query."""
    try:
        return {"ids": sorted(search_spans(run.levels, run.meta, query, MOST)["ids"])}
    except QueryError as error:
        return {"error": str(error)}


def statistics_result(run: RunView, start: int, end: int, rows: list[int]) -> dict[str, Any]:
    """Return the statistics of a selection, with kinds by name."""
    found = select_statistics(run.levels, Part(start, end, np.array(rows)), run.idle)
    kinds = {BY_CODE[one["kind"]].name: [one["count"], one["sum_ns"]] for one in found["kinds"]}
    return {**{name: found[name] for name in SUMS}, "kinds": kinds}
