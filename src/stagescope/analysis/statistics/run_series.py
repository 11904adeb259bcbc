"""A run as series with one value per step, by which two runs are compared.

There is one series for the step, each part of its ledger, the actions of each stage and kind, each rank, and each link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.statistics.action_samples import Sampling
from stagescope.analysis.statistics.link_samples import LINK, sample_links
from stagescope.model.messages import match_messages
from stagescope.vocabulary.causes import CAUSE_COLUMNS
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from stagescope.model import Timeline

SUBJECTS = ("step", "part", "actions", "rank", "link")
SubjectType = pl.Enum(list(SUBJECTS))

KEY = {
    "subject": SubjectType,
    "part": pl.String(),
    "stage": pl.Int32(),
    "kind": pl.String(),
    "rank": pl.Int32(),
    "peer": pl.Int32(),
}
"""The identity of a series: a part of the ledger; the actions of a stage and kind; a rank; a link from rank to peer."""

ACTION = ["stage", "kind", "microbatch"]
PARTS = ("ideal_work_ns", *CAUSE_COLUMNS)


def find_action_costs(timeline: Timeline) -> pl.DataFrame:
    """Return the actions that a comparison can match: rank, step, stage, kind, microbatch, duration_ns."""
    placed = pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    is_action = pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE)
    return timeline.spans.filter(is_action & placed).select(
        "rank", "step", *ACTION, (pl.col("end_ns") - pl.col("start_ns")).clip(0).alias("duration_ns")
    )


def step_series(ledger: pl.DataFrame) -> pl.DataFrame:
    """Return the window of every step and its parts, as means over the pipelines; the parts sum to the window.

    `ledger` is the table LEDGER. Like all series, these have the columns of KEY, step, value_ns, and clock_error_ns:
    how much of the value may be clock error.
    """
    means = ledger.group_by("step").agg(pl.col("window_ns", *PARTS).mean())
    parts = means.unpivot(PARTS, index="step", variable_name="part", value_name="value_ns")
    parts = parts.with_columns(pl.col("part").str.strip_suffix("_ns"))
    return pl.concat([_named("step", means.select("step", value_ns="window_ns")), _named("part", parts)])


def action_series(actions: pl.DataFrame, shared: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the actions of each stage and kind per step, as the mean over the ranks of the stage.

    Only actions in `shared` count, a frame with stage, kind and microbatch.
    """
    matched = actions.join(shared, on=ACTION, how="semi")
    ranks = matched.group_by("step", "stage", "kind", "rank").agg(pl.col("duration_ns").sum())
    sums = ranks.group_by("step", "stage", "kind").agg(value_ns=pl.col("duration_ns").mean())
    return _named("actions", sums)


def rank_series(actions: pl.DataFrame, shared: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the actions of each rank per step, for the actions in `shared`."""
    matched = actions.join(shared, on=ACTION, how="semi")
    return _named("rank", matched.group_by("step", "rank").agg(value_ns=pl.col("duration_ns").sum()))


def link_series(timeline: Timeline) -> pl.DataFrame:
    """Return the time of the messages of each link per step: their median times their number.

    Only messages whose receive was posted before they were sent count for the median (link_samples.py), and only links
    between clocks with a known error; clock_error_ns is that error, for all messages of a step.
    """
    messages = match_messages(timeline.spans)
    steps = tuple(messages["step"].drop_nulls().unique().sort().to_list())
    samples = sample_links(timeline, messages, Sampling(steps, parts=1, microbatches=1))
    known = samples.links.filter(pl.col("error_ns").is_not_null())
    # Messages excluded from the median still count: otherwise their number would look like a change of the link.
    every = messages.group_by(LINK).agg(count=pl.len().cast(pl.Int64) / max(len(steps), 1))
    links = samples.table.join(known, on=LINK, nulls_equal=True).join(every, on=LINK, nulls_equal=True)
    sums = links.group_by("sample", rank="source", peer="target", kind="direction").agg(
        value_ns=(pl.col("median_ns") * pl.col("count")).sum(),
        clock_error_ns=(pl.col("error_ns") * pl.col("count")).sum(),
    )
    of_step = pl.Series(steps, dtype=pl.Int32)
    return _named("link", sums.with_columns(step=of_step.gather(sums["sample"])))


def _named(subject: str, values: pl.DataFrame) -> pl.DataFrame:
    """Return values as series, with null in key columns that they do not have."""
    known = values.with_columns(subject=pl.lit(subject))
    clock_error_ns = (
        pl.col("clock_error_ns") if "clock_error_ns" in known.columns else pl.lit(0.0).alias("clock_error_ns")
    )
    return known.select(
        *(
            (pl.col(name) if name in known.columns else pl.lit(None).alias(name)).cast(dtype)
            for name, dtype in KEY.items()
        ),
        pl.col("step").cast(pl.Int32),
        pl.col("value_ns").cast(pl.Float64),
        clock_error_ns.cast(pl.Float64),
    )
