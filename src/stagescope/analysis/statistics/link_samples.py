"""How long messages took on each link, one sample per training step: what links are compared by.

A link is one rank sending to another in one direction of the pipeline. A message witnesses how fast its link is
from the moment when both ends had asked for it until it had arrived. One that was sent before its receiver asked
may have arrived meanwhile, so such a message tells nothing, and is counted and left out.
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
    """Samples of transfer times, and what had to be left out of them.

    `table` has a row per link, message size and sample: source, target, direction, bytes, sample, median_ns,
    messages. `links` has a row per link and size: source, target, direction, bytes, crosses_machines, and error_ns, by
    how much the two clocks may be off against each other (null: not known, so the link cannot be compared).
    """

    table: pl.DataFrame
    links: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]


def sample_links(timeline: Timeline, messages: pl.DataFrame, sampling: Sampling) -> LinkSamples:
    """Return the samples of the matched `messages` (as match_messages returns them) of a timeline."""
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
    return LinkSamples(table, links, tuple(_left_out(messages.height - placed.height, links)))


def _facts(links: pl.DataFrame, timeline: Timeline) -> pl.DataFrame:
    """Return links with whether they cross machines and how far their clocks may be apart."""
    off = pl.max_horizontal(pl.col("error_lo_ns").abs(), pl.col("error_hi_ns").abs())
    errors = timeline.clocks.group_by("clock").agg(error_ns=off.max())
    ranks = timeline.ranks.select("rank", "machine", "clock").join(errors, on="clock", how="left")
    for end in ("source", "target"):
        own = ranks.rename({name: f"{end}_{name}" for name in ("machine", "clock", "error_ns")})
        links = links.join(own, left_on=end, right_on="rank", how="left", maintain_order="left")
    # A run that names no clock at all has one.
    same_clock = pl.col("source_clock").eq_missing(pl.col("target_clock"))
    both = pl.col("source_error_ns") + pl.col("target_error_ns")
    return links.with_columns(
        crosses_machines=pl.col("source_machine").ne_missing(pl.col("target_machine")),
        error_ns=pl.when(same_clock).then(0).otherwise(both),
    ).select(*LINK, "crosses_machines", "error_ns")


def _left_out(unsupported: int, links: pl.DataFrame) -> list[Diagnostic]:
    found = []
    if unsupported:
        message = (
            "messages were sent before their receiver asked for them; they do not tell how fast their link is"
        )
        found.append(Diagnostic("info", message, count=unsupported))
    unknown = links["error_ns"].null_count()
    if unknown:
        message = "links join clocks that may be off by an unknown time; not compared with others"
        found.append(Diagnostic("info", message, count=unknown))
    return found
