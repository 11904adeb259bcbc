"""Which pipelines can be measured: those whose ranks stand on one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.clock_groups import clock_groups
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.pipelines import find_pipelines
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.model import Timeline


def ranks_apart(timeline: Timeline, pipelines: pl.DataFrame) -> list[int]:
    """Return the ranks, sorted, of pipelines whose machines could not be brought to one clock.

    `pipelines` is what find_pipelines returns. A window over stamps of several clocks would be of no known length, and
    a bubble in it a number without meaning.
    """
    groups = clock_groups(timeline)
    if len(groups) <= 1:
        return []
    rows = [(rank, number) for number, group in enumerate(groups) for rank in group.ranks]
    of_rank = pl.DataFrame(rows, schema={"rank": pl.Int32, "group": pl.Int32}, orient="row")
    spread = pl.col("group").n_unique().over("pipeline") > 1
    return list(pipelines.join(of_rank, on="rank").filter(spread)["rank"].sort())


def only_comparable(timeline: Timeline) -> Timeline:
    """Return the timeline without the spans of ranks that are apart."""
    return without(timeline, ranks_apart(timeline, find_pipelines(timeline.spans, timeline.ranks)))


def without(timeline: Timeline, ranks: Sequence[int]) -> Timeline:
    """Return the timeline without the spans of some ranks; the same object where there are none."""
    return timeline.with_spans(timeline.spans.filter(~pl.col("rank").is_in(ranks))) if ranks else timeline


def apart_diagnostics(ranks: Sequence[int]) -> list[Diagnostic]:
    """Return why these ranks have no windows; empty where there are none."""
    if not ranks:
        return []
    message = (
        f"ranks {compact_ranges(ranks)} belong to pipelines whose machines are not on one clock; their steps are not "
        "measured"
    )
    return [Diagnostic("warning", message, count=len(ranks))]
