"""A run as series with one value per step, by which two runs are compared.

There is one series for the iteration, the pipeline's window, each part of the iteration, the actions of each stage and
kind, each rank, and each link. Values of a link are per message: a sum over messages would change with their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.statistics.action_samples import Sampling
from stagescope.analysis.statistics.link_samples import LINK, join_links
from stagescope.vocabulary.causes import CAUSES

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.statistics.link_samples import StepLinks
    from stagescope.model import Timeline

SUBJECTS = ("iteration", "step", "part", "actions", "rank", "link")
WHOLE = SUBJECTS[:3]
"""The subjects that are about the whole run, and not about one place."""

SubjectType = pl.Enum(list(SUBJECTS))

KEY = {
    "subject": SubjectType,
    "part": pl.String(),
    "stage": pl.Int32(),
    "kind": pl.String(),
    "rank": pl.Int32(),
    "peer": pl.Int32(),
}
"""The identity of a series: a part of the iteration, the actions of a stage and kind, a rank, or a link to a peer."""

IDEAL_WORK = "ideal_work"
PARTS = (IDEAL_WORK, *(cause.name for cause in CAUSES))
LAUNCH, UNATTRIBUTED = "launch_overhead", "unattributed"
TRANSFER_PARTS = ("exposed_communication", "blocked_on_send")


def iteration_series(losses: pl.DataFrame, unrecorded: Collection[str]) -> pl.DataFrame:
    """Return the iteration of every step and its parts, those of the last pipeline; the parts sum to the iteration.

    `losses` is the table STEP_LOSSES, `unrecorded` the columns of parts of which nothing was recorded: these are
    missing, unless they are not 0. Means over the steps are the table LOSSES, apart from negative parts, which that
    table offsets. Like all series, these have the columns of KEY, step, value_ns, and clock_error_ns: how much of the
    value may be clock error.
    """
    unknown = [name for name in unrecorded if not (losses[name] != 0).any()]
    parts = losses.drop("iteration_ns", *unknown).unpivot(
        index="step", variable_name="part", value_name="value_ns"
    )
    parts = parts.with_columns(pl.col("part").str.strip_suffix("_ns"))
    return pl.concat([
        _named("iteration", losses.select("step", value_ns="iteration_ns")),
        _named("part", parts),
    ])  # fmt: skip


def fold_unrecorded(
    series: tuple[pl.DataFrame, pl.DataFrame],
) -> tuple[tuple[pl.DataFrame, pl.DataFrame], list[str]]:
    """Return the series of two runs with the same parts, and a message for every part that only one of them recorded.

    Such a part counts as unattributed in both, because that is what contains it in the run that did not record it.
    Without transfers, delays by messages look like launch overhead, which then counts as unattributed as well.
    """
    parts = [set(one["part"].drop_nulls().unique()) for one in series]
    single = parts[0] ^ parts[1] if all(parts) else set()
    if not single:
        return series, []
    folded = single | ({LAUNCH} if single & set(TRANSFER_PARTS) else set())
    renamed = dict.fromkeys(folded, UNATTRIBUTED)
    before, after = (
        one.with_columns(pl.col("part").replace(renamed))
        .group_by(*KEY, "step", maintain_order=True)
        .agg(pl.col("value_ns", "clock_error_ns").sum())
        for one in series
    )
    messages = [
        f"{part.replace('_', ' ')} was recorded in the {name} run only; it counts as unattributed in both"
        for part in sorted(single)
        for name, own in zip(("first", "second"), parts, strict=True)
        if part in own
    ]
    return (before, after), messages


def window_series(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the window of every step, the longest of all pipelines; `steps` is the table REPORT_STEPS."""
    return _named("step", steps.select("step", value_ns="window_ns"))


def action_series(actions: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the actions of each stage and kind per step, as the mean over the ranks of the stage."""
    ranks = actions.group_by("step", "stage", "kind", "rank").agg(pl.col("duration_ns").sum())
    sums = ranks.group_by("step", "stage", "kind").agg(value_ns=pl.col("duration_ns").mean())
    return _named("actions", sums.sort("stage", "kind", "step"))


def rank_series(actions: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the actions of each rank per step."""
    sums = actions.group_by("step", "rank").agg(value_ns=pl.col("duration_ns").sum())
    return _named("rank", sums.sort("rank", "step"))


def link_series(timeline: Timeline, links: StepLinks, steps: Collection[int]) -> pl.DataFrame:
    """Return the time of a message of each link per step: their median.

    `links` are the samples of the messages of a timeline. Only messages whose receive was posted before they were sent
    count (link_samples.py), and only links between clocks with a known error; clock_error_ns is that error. Messages of
    different sizes count with equal weight.
    """
    present = tuple(sorted(set(links.counts["step"].drop_nulls()).intersection(steps)))
    samples = join_links(timeline, [links], Sampling(present, parts=1, microbatches=1))
    known = samples.links.filter(pl.col("error_ns").is_not_null())
    rows = samples.table.join(known, on=LINK, nulls_equal=True)
    means = rows.group_by("sample", rank="source", peer="target", kind="direction").agg(
        value_ns=pl.col("median_ns").mean(), clock_error_ns=pl.col("error_ns").mean()
    )
    means = means.sort("rank", "peer", "kind", "sample")
    of_step = pl.Series(present, dtype=pl.Int32)
    return _named("link", means.with_columns(step=of_step.gather(means["sample"])))


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
