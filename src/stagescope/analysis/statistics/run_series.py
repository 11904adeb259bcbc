"""A run as series with one value per step, by which two runs are compared.

There is one series for the iteration, the pipeline's window, each part of the iteration, the actions of each stage and
kind, each rank, and each link. Values of a link are per message: a sum over messages would change with their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.iteration.last_pipeline import losses_by_step
from stagescope.analysis.statistics.action_samples import Sampling
from stagescope.analysis.statistics.link_samples import LINK, sample_links
from stagescope.model.messages import match_messages
from stagescope.vocabulary.causes import CAUSES
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.intermediates import Intermediates
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
BACKWARDS = ("backward", "backward_input", "backward_weight")


def find_action_costs(timeline: Timeline) -> pl.DataFrame:
    """Return the actions that a comparison can match: rank, step, stage, kind, microbatch, duration_ns."""
    placed = pl.all_horizontal(pl.col("step", "stage", "microbatch").is_not_null())
    is_action = pl.col("kind").is_in(ACTION_KINDS) & (pl.col("lane") == COMPUTE)
    return timeline.spans.filter(is_action & placed).select(
        "rank",
        "step",
        "stage",
        pl.col("kind").cast(pl.String),
        "microbatch",
        (pl.col("end_ns") - pl.col("start_ns")).clip(0).alias("duration_ns"),
    )


def with_whole_backwards(actions: pl.DataFrame) -> pl.DataFrame:
    """Return actions in which both halves of a backward are named backward, like a full one."""
    return actions.with_columns(pl.col("kind").replace(dict.fromkeys(BACKWARDS[1:], BACKWARDS[0])))


def iteration_series(intermediates: Intermediates) -> pl.DataFrame:
    """Return the iteration of every step and its parts, those of the last pipeline; the parts sum to the iteration.

    Their means over the steps are the table LOSSES, apart from negative parts, which that table offsets.
    Parts of which nothing was recorded are missing. Like all series, these have the columns of KEY, step, value_ns, and
    clock_error_ns: how much of the value may be clock error.
    """
    ledger = intermediates.ledger
    losses = losses_by_step(
        intermediates.iterations, ledger.losses, intermediates.chained_losses, ledger.steps
    )
    unknown = [name for name in intermediates.unrecorded if not (losses[name] != 0).any()]
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


def window_series(intermediates: Intermediates) -> pl.DataFrame:
    """Return the window of every step, the longest of all pipelines, as the table of steps in the report has it."""
    windows = intermediates.windows.bubbles.group_by("step").agg(value_ns=pl.max("window_ns"))
    return _named("step", windows.sort("step"))


def action_series(actions: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the actions of each stage and kind per step, as the mean over the ranks of the stage."""
    ranks = actions.group_by("step", "stage", "kind", "rank").agg(pl.col("duration_ns").sum())
    sums = ranks.group_by("step", "stage", "kind").agg(value_ns=pl.col("duration_ns").mean())
    return _named("actions", sums)


def rank_series(actions: pl.DataFrame) -> pl.DataFrame:
    """Return the time of the actions of each rank per step."""
    return _named("rank", actions.group_by("step", "rank").agg(value_ns=pl.col("duration_ns").sum()))


def link_series(timeline: Timeline, steps: Collection[int]) -> pl.DataFrame:
    """Return the time of a message of each link per step: their median.

    Only messages whose receive was posted before they were sent count (link_samples.py), and only links between clocks
    with a known error; clock_error_ns is that error. Messages of different sizes count with equal weight.
    """
    every = match_messages(timeline.spans)
    messages = every.filter(pl.col("step").is_in(list(steps)))
    present = tuple(messages["step"].drop_nulls().unique().sort().to_list())
    samples = sample_links(timeline, messages, Sampling(present, parts=1, microbatches=1))
    known = samples.links.filter(pl.col("error_ns").is_not_null())
    links = samples.table.join(known, on=LINK, nulls_equal=True)
    means = links.group_by("sample", rank="source", peer="target", kind="direction").agg(
        value_ns=pl.col("median_ns").mean(), clock_error_ns=pl.col("error_ns").mean()
    )
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
