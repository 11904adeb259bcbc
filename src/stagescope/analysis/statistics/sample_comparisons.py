"""What the samples of all steps in the totals show: subjects compared with their peers, and why steps were unusual."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stagescope.analysis.statistics.action_samples import join_samples
from stagescope.analysis.statistics.link_samples import join_links
from stagescope.analysis.statistics.step_trend import explain_step_trends
from stagescope.analysis.statistics.stragglers import measure_subjects

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from stagescope.analysis.statistics.action_samples import Sampling, StepSamples
    from stagescope.analysis.statistics.link_samples import StepLinks
    from stagescope.analysis.statistics.step_trend import OutlierWindows, StepTrends
    from stagescope.analysis.statistics.stragglers import ComparedSubjects
    from stagescope.model import Timeline


class RunSamples(NamedTuple):
    """The samples of each range of steps, which may be read when they are used, and the messages of unusual steps.

    `sampling` is how few steps are divided into samples; None: each step is one.
    """

    actions: Sequence[StepSamples]
    links: Sequence[StepLinks]
    messages: pl.DataFrame
    sampling: Sampling | None


class SampleComparisons(NamedTuple):
    """What measure_subjects and explain_step_trends return."""

    subjects: ComparedSubjects
    trends: StepTrends


def compare_samples(
    timeline: Timeline, pipelines: pl.DataFrame, measured: RunSamples, unusual: OutlierWindows
) -> SampleComparisons:
    """Return what the samples show; `timeline` has the ranks and clocks, `unusual` is from find_outlier_windows."""
    samples = join_samples(measured.actions, measured.sampling)
    links = join_links(timeline, measured.links, samples.sampling)
    return SampleComparisons(
        measure_subjects(timeline.ranks, pipelines, (samples, links)),
        explain_step_trends(unusual, pipelines, samples, (links, measured.messages)),
    )
