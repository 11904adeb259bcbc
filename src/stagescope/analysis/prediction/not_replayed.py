"""What predictions need of pipelines that the sample of a run does not have: windows instead of actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.prediction.evidence import NotReplayed
from stagescope.model.large_tables import chosen_rows, few_rows
from stagescope.model.lazy import parts_of
from stagescope.model.step_ranges import is_in_steps, steps_around
from stagescope.vocabulary.kinds import ACTION_KINDS, COMPUTE

if TYPE_CHECKING:
    from stagescope.analysis.intermediates import Intermediates


def not_replayed(intermediates: Intermediates) -> NotReplayed | None:
    """Return what is known of the pipelines of a run that are not in its sample; None if all are."""
    sample = intermediates.sample
    if sample.others is None:
        return None
    bubbles = chosen_rows(sample.others.windows.bubbles, is_in_steps(sample.steps))
    windows = (
        bubbles.filter(_is_other(sample))
        .group_by("step", "pipeline")
        .agg(first_ns=pl.min("window_start_ns"), last_ns=pl.max("window_end_ns"))
    )
    stages = intermediates.rank_stages.explode("stages").select("rank", stage="stages")
    return NotReplayed(windows.sort("step", "pipeline"), stages)


def shown_spans(sample: Intermediates) -> pl.DataFrame:
    """Return the spans of a sample and those of other pipelines: of these, a forward for the window of each rank.

    Without their actions, a rank would seem not to compute while others of its pipeline wait for it.
    """
    if sample.others is None:
        return sample.own_spans
    spans = sample.spans_with_others
    own = pl.col("rank").is_in(sample.windows.pipelines["rank"].implode())
    windows = sample.others.windows.bubbles.filter(_is_other(sample) & is_in_steps(sample.steps)).select(
        "step",
        "rank",
        start_ns="window_start_ns",
        end_ns="window_end_ns",
        kind=pl.lit("forward", spans.schema["kind"]),
        lane=pl.lit(COMPUTE, spans.schema["lane"]),
    )
    kept = spans.filter(own | ~pl.col("kind").is_in(ACTION_KINDS))
    return pl.concat([kept, windows], how="diagonal")


def shown_meetings(intermediates: Intermediates) -> pl.DataFrame:
    """Return the rows of MEETINGS within spans of the sample: those of its steps and of the steps next to them.

    A large run has one for every rank and step.
    """
    steps = intermediates.sample.steps
    near = is_in_steps(None if steps is None else steps_around(steps))
    return pl.concat(few_rows(rows, near) for rows in parts_of(intermediates, "meetings"))


def _is_other(sample: Intermediates) -> pl.Expr:
    return ~pl.col("pipeline").is_in(sample.windows.pipelines["pipeline"].unique().implode())
