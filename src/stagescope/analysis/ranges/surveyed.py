"""The first pass over a run that is analyzed in ranges of steps: which steps are in the totals, and which were unusual.

It looks at whole pipelines, because the window of a step is that of its pipeline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.analysis.completeness.missing_data import StepCounts
from stagescope.analysis.idle.step_windows import windows_alike
from stagescope.analysis.intermediates import Intermediates
from stagescope.analysis.iteration.boundaries import join_recorded
from stagescope.analysis.ranges.long_tables import WholePipelines
from stagescope.analysis.sampled_pipelines import with_collectives
from stagescope.analysis.statistics.step_trend import OutlierWindows, find_outlier_windows
from stagescope.analysis.step_results import ChosenSteps, choose_divided_sampling
from stagescope.analysis.totals import measure_totals
from stagescope.analysis.windows import Windows
from stagescope.model.lazy import lazily, parts_of, with_later
from stagescope.vocabulary.kinds import ACTION_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stagescope.analysis.ranges.long_tables import LongTable
    from stagescope.model import Timeline
    from stagescope.model.lazy import InParts


class PipelineSurvey(NamedTuple):
    """What is known of some pipelines without the causes of their idle time.

    `pipelines` and `bubbles` are those of Windows, with what choose_pipelines needs; the other fields are those of
    Intermediates with the same names.
    """

    pipelines: pl.DataFrame
    bubbles: pl.DataFrame
    recorded: pl.DataFrame
    microbatch_counts: pl.DataFrame
    peers: frozenset[int]
    rank_stages: pl.DataFrame
    steps_with_optimizer: pl.Series
    incomplete_steps: frozenset[int]
    recorded_waits: frozenset[str]
    step_counts: StepCounts


class StepTables(NamedTuple):
    """What all surveys have for every step, in parts, one for each range of steps.

    `bubbles` and `counts` are those of Windows and count_microbatches, sorted by step; `windows` is from
    windows_with_work.
    """

    bubbles: InParts
    counts: InParts
    windows: LongTable


OF_STEPS = ("microbatch_counts", "step_windows")
"""Results of Intermediates with a row per pipeline and step, which a large run has in parts."""
OF_ACTIONS = ("microbatch_counts", "rank_stages", "incomplete_steps", "step_counts")
"""Fields of PipelineSurvey for which only spans of actions count."""


def survey_pipelines(known: Intermediates) -> PipelineSurvey:
    """Return what is known of the pipelines of `known`."""
    spans = known.timeline.spans
    # Each of these looks for the actions, about a third of the spans.
    acting = Intermediates(
        known.timeline.with_spans(spans.filter(pl.col("kind").is_in(ACTION_KINDS))), known.windows
    )
    of_run = {
        name: getattr(acting if name in OF_ACTIONS else known, name) for name in PipelineSurvey._fields[2:]
    }
    return PipelineSurvey(known.windows.pipelines, with_collectives(known.windows.bubbles, spans), **of_run)


def join_surveys(
    timeline: Timeline, surveys: Sequence[PipelineSurvey], of_steps: StepTables, unaligned: list[int]
) -> Intermediates:
    """Return the intermediate results of the run, as far as all its pipelines have been surveyed.

    `timeline` has its ranks, and the spans of some of its steps. `of_steps` has the rows of `surveys` of each range of
    steps: those of a large run take much memory. `unaligned` are ranks that were left out.
    """
    pipelines = pl.concat([each.pipelines for each in surveys]).unique().sort("rank")
    counts = [each.step_counts for each in surveys]
    known = {"pipelines": pipelines, "unaligned": unaligned}
    windows = lazily(Windows, known, {"bubbles": of_steps.bubbles}, is_kept=False)
    joined = Intermediates(timeline, windows).with_results(
        recorded=join_recorded(each.recorded for each in surveys),
        peers=frozenset().union(*(each.peers for each in surveys)),
        rank_stages=_united(pl.concat([each.rank_stages for each in surveys])),
        steps_with_optimizer=pl.concat([each.steps_with_optimizer for each in surveys]).unique().sort(),
        incomplete_steps=frozenset().union(*(each.incomplete_steps for each in surveys)),
        recorded_waits=frozenset().union(*(each.recorded_waits for each in surveys)),
        step_counts=StepCounts(*(sum(getattr(each, name) for each in counts) for name in StepCounts._fields)),
    )
    return with_later(joined, dict(zip(OF_STEPS, (of_steps.counts, of_steps.windows.in_parts), strict=True)))


def choose_steps(known: Intermediates, windows: LongTable) -> tuple[ChosenSteps, OutlierWindows]:
    """Return the steps in the totals of the run, and which of them took unusually long, in which pipelines.

    `windows` is that of StepTables.
    """
    counted = measure_totals(known).counted
    own = windows.changed(lambda rows: rows.filter(pl.col("step").is_in(list(counted))))
    unusual = find_outlier_windows(WholePipelines(own, windows_alike))
    sampling = choose_divided_sampling(counted, parts_of(known, "microbatch_counts"))
    return ChosenSteps(counted, tuple(unusual.windows["step"].unique().sort()), sampling), unusual


def _united(stages: pl.DataFrame) -> pl.DataFrame:
    every = stages.explode("stages").group_by("rank")
    return every.agg(pl.col("stages").drop_nulls().unique().sort()).sort("rank")
