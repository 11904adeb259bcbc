"""Pipelines that cannot be measured because their ranks are on clocks that could not be aligned."""

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


def find_unaligned_ranks(timeline: Timeline, pipelines: pl.DataFrame) -> list[int]:
    """Return the ranks, sorted, of pipelines whose machines are not all on one clock.

    `pipelines` is what find_pipelines returns. A window that begins on one clock and ends on another has no known
    length, so its bubble would be meaningless: the whole pipeline is left out, not only some of its ranks.
    """
    groups = clock_groups(timeline)
    if len(groups) <= 1:
        return []
    rows = [(rank, number) for number, group in enumerate(groups) for rank in group.ranks]
    of_rank = pl.DataFrame(rows, schema={"rank": pl.Int32, "group": pl.Int32}, orient="row")
    spread = pl.col("group").n_unique().over("pipeline") > 1
    return list(pipelines.join(of_rank, on="rank").filter(spread)["rank"].sort())


def unaligned_ranks(timeline: Timeline) -> list[int]:
    """Return the ranks, sorted, of a timeline's pipelines whose machines are not all on one clock."""
    return find_unaligned_ranks(timeline, find_pipelines(timeline.spans, timeline.ranks))


def keep_aligned_pipelines(timeline: Timeline) -> Timeline:
    """Return the timeline without the spans of pipelines that are not on one clock."""
    return drop_ranks(timeline, unaligned_ranks(timeline))


def drop_ranks(timeline: Timeline, ranks: Sequence[int]) -> Timeline:
    """Return the timeline without the spans of `ranks`; the same object if `ranks` is empty."""
    return timeline.with_spans(timeline.spans.filter(~pl.col("rank").is_in(ranks))) if ranks else timeline


def unaligned_diagnostics(ranks: Sequence[int]) -> list[Diagnostic]:
    """Return a warning that these ranks are not measured; empty if there are none."""
    if not ranks:
        return []
    message = (
        f"ranks {compact_ranges(ranks)} belong to pipelines whose machines are not on one clock; their steps are not "
        "measured"
    )
    return [Diagnostic("warning", message, count=len(ranks), code="clock.pipeline_unaligned")]
