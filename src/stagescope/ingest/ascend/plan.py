"""What the marks of every rank are, job by job, where it follows a schedule.

Ascend's guide marks the forward and backward functions of Megatron's schedules, and those of MindSpeed's DualPipeV
(MindSpeed, core/pipeline_parallel/dualpipev/dualpipev_schedules.py; msprof-analyze 26.2.0, recipe pp_chart):

* An overlapped pair is one mark, which says the number of its forward. Backwards and weight gradients say none.
* The second chunk of a rank counts its micro-batches on from the first's: m to 2 m - 1.
* Rank 0 of a DualPipeV holds the last stage too. There, a mark of its own, the backward of the loss ("logits"),
  stands before each backward of the second chunk.
* In the cool-down DualPipeV pops weight gradients without a mark, so that backwards look whole. Versions that mark
  them show the other order; both are tried.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from stagescope import schedules
from stagescope.ingest.ascend.pipeline_info import BACKWARD, FORWARD, OVERLAP, WEIGHT
from stagescope.schedules.catalog import find_schedule
from stagescope.schedules.placement import stages_of
from stagescope.schedules.recognition.matching import Mark
from stagescope.vocabulary.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stagescope.schedules import Action

LOGITS = "logits"
"""The sort of a mark that is certainly the loss's backward, and the name of that job."""

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
SORTS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}


class PlannedAction(NamedTuple):
    """One job that a mark stands for."""

    kind: str
    stage: int
    chunk: int
    microbatch: int


class Due(NamedTuple):
    """The next mark of a rank: what it would say, and the one or two jobs that it stands for."""

    mark: Mark
    parts: tuple[PlannedAction, ...]


@dataclass(frozen=True)
class Plan:
    """A schedule in its sizes, and how the marks show it.

    `logits` is the sort of mark that the loss's backward has on rank 0 of a DualPipeV, None where it has none.
    `counts_on` says whether the second chunk numbers its micro-batches from m on.
    """

    schedule: str
    ranks: int
    microbatches: int
    chunks: int = 1
    split_cooldown: bool = False
    logits: str | None = None
    counts_on: bool = False

    def rows(self) -> dict[int, tuple[Due, ...]] | None:
        """Return the marks of one step per pipeline coordinate, None where the schedule cannot have these sizes."""
        options: dict[str, object] = {}
        if self.schedule == "dualpipev":
            options["split_cooldown"] = self.split_cooldown
        try:
            order = schedules.order(
                self.schedule,
                ranks=self.ranks,
                microbatches=self.microbatches,
                chunks=self.chunks,
                **options,
            )
        except ScheduleError:
            return None
        return {pp: tuple(self._row(pp, actions)) for pp, actions in order.items()}

    def _row(self, pp: int, actions: list[Action]) -> Iterator[Due]:
        placement = find_schedule(self.schedule).placement
        chunk_of = {s: c for c, s in enumerate(stages_of(placement, self.ranks, self.chunks, pp))}
        last_stage = self.ranks * self.chunks - 1
        for action in actions:
            jobs = tuple(
                PlannedAction(KINDS[job.kind], job.stage, chunk_of[job.stage], job.microbatch)
                for job in action.parts
            )
            ends = next((job for job in jobs if job.stage == last_stage and job.kind != "forward"), None)
            if self.logits is not None and pp == 0 and ends is not None and ends.kind != "backward_weight":
                yield Due(self._mark(self.logits, ends), (ends._replace(kind="loss"),))
            yield Due(self._mark(OVERLAP if len(jobs) > 1 else SORTS[action.kind], jobs[0]), jobs)

    def _mark(self, sort: str, job: PlannedAction) -> Mark:
        first = job.chunk * self.microbatches if self.counts_on else 0
        return Mark(sort, job.chunk, first + job.microbatch)

    def variants(self, *, logits_are_told: bool) -> list[Plan]:
        """Return the ways in which marks may show this schedule, the likeliest first."""
        if self.schedule != "dualpipev":
            return [self]
        shown = (LOGITS,) if logits_are_told else (BACKWARD, None)
        return [replace(self, split_cooldown=split, logits=sort) for split in (False, True) for sort in shown]
