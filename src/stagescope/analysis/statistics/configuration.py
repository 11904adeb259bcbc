"""What a run is: its schedule and sizes, and how those of another run differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.schedules.spellings import known_schedule
from stagescope.vocabulary.counts import counted

if TYPE_CHECKING:
    from collections.abc import Collection

    from stagescope.analysis.report import Report
    from stagescope.analysis.statistics.compared_spans import ComparedSpans

UNKNOWN = "an unrecognized schedule"


class Configuration(NamedTuple):
    """The schedule of a run (None: not recognized) and its sizes.

    `declared` is what the run states that its schedule is; it matters if the recognized ones are equal or unknown.
    `chunks` is the largest number of stages of a rank, `microbatches` the mean number per step of a pipeline, and
    `replicas` the number of pipelines.
    """

    schedule: str | None
    ranks: int
    replicas: int
    stages: int
    chunks: int
    microbatches: float
    declared: str | None = None

    @property
    def schedule_text(self) -> str:
        """The schedule, with the number of chunks if a rank has several."""
        chunks = f" with {counted(self.chunks, 'chunk')} per rank" if self.chunks > 1 else ""
        return f"{self.schedule or UNKNOWN}{chunks}"


def find_configuration(report: Report, spans: ComparedSpans, steps: Collection[int]) -> Configuration:
    """Return the configuration of the run of a report, in the steps that are compared.

    Others may have fewer micro-batches, such as the last one of a recording that was cut off.
    """
    counts = spans.microbatches.filter(pl.col("step").is_in(list(steps)))["microbatches"]
    stages_of_ranks = report.ranks["stages"].to_list()
    known = report.explanation or report.intermediates
    return Configuration(
        schedule=known.ideal.schedule,
        ranks=report.ranks.height,
        replicas=len(spans.pipelines),
        stages=report.ranks["stages"].explode().drop_nulls().n_unique(),
        chunks=max(map(len, stages_of_ranks), default=0),
        microbatches=float(counts.mean() or 0.0),  # type: ignore[arg-type]  # a number
        declared=known_schedule(report.schedule) or report.schedule,
    )


def changes_between(before: Configuration, after: Configuration) -> list[str]:
    """Return what changed from one configuration to another, the schedule first, each as a clause with from and to.

    >>> one = Configuration("1f1b", 8, 1, 8, 1, 16.0)
    >>> changes_between(one, one._replace(schedule="interleaved", stages=16, chunks=2))
    ['the schedule from 1f1b to interleaved with 2 chunks per rank', 'the number of stages from 8 to 16']
    """
    found = []
    if before.schedule_text != after.schedule_text:
        found.append(f"the schedule from {before.schedule_text} to {after.schedule_text}")
    elif before.declared and after.declared and before.declared != after.declared:
        found.append(f"the declared schedule from {before.declared} to {after.declared}")
    sizes = {
        "stages": "stages",
        "microbatches": "micro-batches per step",
        "ranks": "ranks",
        "replicas": "data-parallel replicas",
    }
    for name, words in sizes.items():
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            found.append(f"the number of {words} from {one:g} to {other:g}")
    return found
