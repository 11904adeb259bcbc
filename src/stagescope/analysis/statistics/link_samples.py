"""Samples of transfer times, one per link and training step: the basis for comparing links.

A link is one rank sending to another in one direction of the pipeline. A message measures the speed of its link from
when both ends had posted it until it arrived. A message that was sent before the receive was posted may have arrived
earlier than its receiver looked, so it is excluded and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.diagnostics import Diagnostic

if TYPE_CHECKING:
    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.model import Timeline

LINK = ["source", "target", "direction", "bytes"]


@dataclass(frozen=True)
class LinkSamples:
    """Samples of transfer times, and diagnostics for what they leave out.

    `table` has a row per link, message size and sample: source, target, direction, bytes, sample, median_ns, messages.
    `links` has a row per link and size: source, target, direction, bytes, crosses_machines, and error_ns, the error of
    the offset between both clocks (null: unknown, so the link cannot be compared).
    """

    table: pl.DataFrame
    links: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def sample_links(timeline: Timeline, messages: pl.DataFrame, sampling: Sampling) -> LinkSamples:
    """Return the samples of the matched `messages` (from match_messages) of a timeline."""
    waited = pl.col("recv_start_ns") <= pl.col("send_start_ns")
    placed = messages.filter(pl.col("step").is_in(list(sampling.steps)) & waited)
    table = (
        placed.lazy()
        .with_columns(
            sample=sampling.expression(), duration_ns=pl.col("recv_end_ns") - pl.col("send_start_ns")
        )
        .group_by(*LINK, "sample")
        .agg(
            median_ns=pl.col("duration_ns").median(),
            messages=pl.len(),
        )
        .sort(*LINK, "sample", nulls_last=True)
        .collect()
    )
    links = _facts(table.select(LINK).unique(maintain_order=True), timeline)
    return LinkSamples(table, links, tuple(_excluded(messages.height - placed.height, links)))


def _facts(links: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Return links with whether they cross machines, and the error of the offset between their clocks."""
    off = pl.max_horizontal(pl.col("error_lo_ns").abs(), pl.col("error_hi_ns").abs())
    errors = timeline.clocks.group_by("clock").agg(error_ns=off.max())
    ranks = timeline.ranks.select("rank", "machine", "clock").join(errors, on="clock", how="left")
    for end in ("source", "target"):
        own = ranks.rename({name: f"{end}_{name}" for name in ("machine", "clock", "error_ns")})
        links = links.join(own, left_on=end, right_on="rank", how="left", maintain_order="left")
    # A run without clock names has a single clock.
    same_clock = pl.col("source_clock").eq_missing(pl.col("target_clock"))
    both = pl.col("source_error_ns") + pl.col("target_error_ns")
    return links.with_columns(
        crosses_machines=pl.col("source_machine").ne_missing(pl.col("target_machine")),
        error_ns=pl.when(same_clock).then(0).otherwise(both),
    ).select(*LINK, "crosses_machines", "error_ns")


def _excluded(early: int, links: pl.DataFrame) -> list[Diagnostic]:
    found = []
    if early:
        message = "sends completed before the matching receive was posted; excluded from link statistics"
        found.append(Diagnostic("info", message, count=early, code="links.early_send"))
    unknown = links["error_ns"].null_count()
    if unknown:
        message = "links connect clocks whose offset has an unknown error; excluded from link statistics"
        found.append(Diagnostic("info", message, count=unknown, code="clock.error_unknown"))
    return found
