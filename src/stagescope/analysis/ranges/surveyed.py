"""The first pass over a run in ranges of steps: what decides which steps are in the totals, and which were unusual."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.idle.step_windows import windows_of_bubbles
from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.statistics.step_trend import find_outlier_windows
from stagescope.analysis.step_results import ChosenSteps
from stagescope.analysis.totals import measure_totals
from stagescope.analysis.windows import Windows
from stagescope.model.step_ranges import is_in_steps

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPWISE = ("recorded", "microbatch_counts")
"""Tables of Intermediates with a row per step, of which each range has those of its own steps."""


class RangeSurvey(NamedTuple):
    """What is known of a range of steps without its causes of idle time.

    `bubbles` is what step_bubbles returns; the other fields are those of Intermediates with the same names.
    """

    bubbles: pl.DataFrame
    recorded: pl.DataFrame
    microbatch_counts: pl.DataFrame
    rank_stages: pl.DataFrame
    steps_with_optimizer: pl.Series
    incomplete_steps: frozenset[int]
    recorded_waits: frozenset[str]


def survey_range(known: Intermediates) -> RangeSurvey:
    """Return what is known of the steps of `known`, whose timeline also has the steps before and after them."""
    own = is_in_steps(known.steps)
    with_optimizer = known.steps_with_optimizer.to_frame("step").filter(own)["step"]
    steps = set(known.windows.bubbles.filter(own)["step"])
    return RangeSurvey(
        bubbles=known.windows.bubbles.filter(own),
        **{name: getattr(known, name).filter(own) for name in STEPWISE},
        rank_stages=known.rank_stages,
        steps_with_optimizer=with_optimizer,
        incomplete_steps=known.incomplete_steps & steps,
        recorded_waits=known.recorded_waits,
    )


def join_surveys(reference: Intermediates, surveys: Sequence[RangeSurvey]) -> Intermediates:
    """Return intermediate results of all ranges; what depends on single actions is that of `reference`, one of them."""
    bubbles = pl.concat([each.bubbles for each in surveys]).sort("step", "rank")
    windows = Windows(reference.windows.pipelines, bubbles, reference.windows.unaligned)
    known = Intermediates(reference.timeline, windows)
    known.__dict__.update(
        {name: pl.concat([getattr(each, name) for each in surveys]).sort("step") for name in STEPWISE},
        rank_stages=_united(pl.concat([each.rank_stages for each in surveys])),
        steps_with_optimizer=pl.concat([each.steps_with_optimizer for each in surveys]).unique().sort(),
        incomplete_steps=frozenset().union(*(each.incomplete_steps for each in surveys)),
        recorded_waits=frozenset().union(*(each.recorded_waits for each in surveys)),
    )
    return known


def chosen_steps(surveys: Sequence[RangeSurvey], reference: Intermediates) -> ChosenSteps:
    """Return the steps in the totals of the run, and which of them took unusually long."""
    known = join_surveys(reference, surveys)
    counted = measure_totals(known).counted
    windows = windows_of_bubbles(known.windows.bubbles.filter(pl.col("step").is_in(list(counted))))
    return ChosenSteps(counted, tuple(find_outlier_windows(windows)[1]["step"].unique().sort()))


def _united(stages: pl.DataFrame) -> pl.DataFrame:
    every = stages.explode("stages").group_by("rank")
    return every.agg(pl.col("stages").drop_nulls().unique().sort()).sort("rank")
