"""Samples of transfer times, one per link and training step: the basis for comparing links.

A link is one rank sending to another in one direction of the pipeline. A message measures the speed of its link from
when both ends had posted it until it arrived. A message that was sent before the receive was posted may have arrived
earlier than its receiver looked, so it is excluded and counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.model.diagnostics import Diagnostic
from stagescope.model.large_tables import chosen_rows, kept_if_few, united_rows
from stagescope.model.lazy import TableParts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stagescope.analysis.statistics.action_samples import Sampling
    from stagescope.model import Timeline

LINK = ["source", "target", "direction", "bytes"]
LINK_COLUMNS = [*LINK, "sample", "median_ns", "messages"]


@dataclass(frozen=True)
class LinkSamples:
    """Samples of transfer times, and diagnostics for what they leave out.

    `parts` have the rows of `table`, one range of samples after the other; they may be iterated more than once. `links`
    has a row per link and size: source, target, direction, bytes, crosses_machines, and error_ns, the error of the
    offset between both clocks (null: unknown, so the link cannot be compared).
    """

    parts: Iterable[pl.DataFrame]
    links: pl.DataFrame
    diagnostics: tuple[Diagnostic, ...]

    @property
    def table(self) -> pl.DataFrame:
        """A row per link, message size and sample, sorted.

        Columns: source, target, direction, bytes, sample, median_ns, messages.
        """
        return pl.concat(self.parts).sort(*LINK, "sample", nulls_last=True)


class StepLinks(NamedTuple):
    """Samples of the transfer times of some steps, which those of other steps can be added to.

    `table` is that of LinkSamples; unless steps are divided, with the column `step` instead of `sample`: each step is a
    sample. `counts` has step (null: none) and messages, with those that are left out.
    """

    table: pl.DataFrame
    counts: pl.DataFrame


def sample_links(timeline: Timeline, messages: pl.DataFrame, sampling: Sampling) -> LinkSamples:
    """Return the samples of the matched `messages` (from match_messages) of a timeline."""
    return join_links(timeline, [sample_step_links(messages, sampling)], sampling)


def sample_step_links(messages: pl.DataFrame, sampling: Sampling | None = None) -> StepLinks:
    """Return the samples of matched messages, step by step; `sampling` is that of the run if it has few steps."""
    waited = messages.filter(pl.col("recv_start_ns") <= pl.col("send_start_ns"), pl.col("step").is_not_null())
    if sampling is not None and sampling.parts > 1:
        samples = _samples(waited.filter(_is_sampled(sampling)).with_columns(sample=sampling.expression()))
    else:
        samples = _samples(waited.with_columns(sample="step")).rename({"sample": "step"})
    return StepLinks(samples, messages.group_by("step").agg(messages=pl.len()))


def unite_links(parts: Sequence[StepLinks]) -> StepLinks:
    """Return the samples of some steps, given those of some pipelines each."""
    counts = pl.concat([part.counts for part in parts]).group_by("step").agg(pl.sum("messages"))
    return StepLinks(pl.concat([part.table for part in parts]), counts)


def join_links(timeline: Timeline, parts: Sequence[StepLinks], sampling: Sampling) -> LinkSamples:
    """Return the samples of the links of a run, given those of its parts and how it is divided into samples."""
    rows = kept_if_few(TableParts(parts, partial(_of_part, sampling)))
    links = _facts(united_rows(rows, LINK).sort(LINK, nulls_last=True), timeline)
    is_compared = ~pl.col("step").is_in(list(sampling.skipped)).fill_null(value=False)
    count = sum(int(part.counts.filter(is_compared)["messages"].sum()) for part in parts)
    used = sum(int(each["messages"].sum()) for each in rows)
    return LinkSamples(rows, links, tuple(_excluded(count - used, links)))


def _is_sampled(sampling: Sampling) -> pl.Expr:
    return pl.col("step").is_in(list(sampling.steps))


def _of_part(sampling: Sampling, part: StepLinks) -> pl.DataFrame:
    """Return the samples of some steps."""
    if sampling.parts > 1:
        return part.table.select(LINK_COLUMNS)
    rows = chosen_rows(part.table, _is_sampled(sampling))
    return rows.with_columns(sample=sampling.expression()).select(LINK_COLUMNS)


def _samples(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the samples of messages whose column `sample` states which one they belong to."""
    duration_ns = pl.col("recv_end_ns") - pl.col("send_start_ns")
    grouped = messages.lazy().with_columns(duration_ns=duration_ns).group_by(*LINK, "sample")
    return grouped.agg(median_ns=pl.col("duration_ns").median(), messages=pl.len()).collect()


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
