"""Plans: the marks that a schedule prescribes for every rank, in order.

Ascend's guide marks the forward and backward functions of Megatron's schedules, and those of MindSpeed's DualPipeV
(MindSpeed, core/pipeline_parallel/dualpipev/dualpipev_schedules.py; msprof-analyze 26.2.0, recipe pp_chart):

* An overlapped pair is one mark, which records the number of its forward. Backwards and weight gradients record none.
* The second chunk of a rank continues the numbering of the first: m to 2 m - 1.
* Rank 0 of a DualPipeV also holds the last stage. There, each backward of the second chunk is preceded by a separate
  mark, the backward of the loss ("logits").
* In the cool-down, DualPipeV runs weight gradients without a mark, so each backward looks complete. Versions that mark
  them have the other order; both are tried.
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
"""Sort of a mark that is certainly the backward of the loss, and the name of that action."""

KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
SORTS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}


class PlannedAction(NamedTuple):
    """One action that a mark represents."""

    kind: str
    stage: int
    chunk: int
    microbatch: int


class PlannedMark(NamedTuple):
    """One mark of a rank's plan: its expected content, and the one or two actions that it represents."""

    mark: Mark
    parts: tuple[PlannedAction, ...]


@dataclass(frozen=True)
class Plan:
    """A schedule with its sizes, and how the marks represent it.

    `logits` is the sort of mark of the loss's backward on rank 0 of a DualPipeV, None if it has no mark. `counts_on` is
    true if the numbers of the second chunk start at m.
    """

    schedule: str
    ranks: int
    microbatches: int
    chunks: int = 1
    split_cooldown: bool = False
    logits: str | None = None
    counts_on: bool = False

    def rows(self) -> dict[int, tuple[PlannedMark, ...]] | None:
        """Return the marks of one step per pipeline coordinate; None where the schedule cannot have these sizes."""
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

    def _row(self, pp: int, actions: list[Action]) -> Iterator[PlannedMark]:
        # Marks record the local chunk, schedules the global stage.
        placement = find_schedule(self.schedule).placement
        chunk_of = {s: c for c, s in enumerate(stages_of(placement, self.ranks, self.chunks, pp))}
        last_stage = self.ranks * self.chunks - 1
        for action in actions:
            parts = tuple(
                PlannedAction(KINDS[part.kind], part.stage, chunk_of[part.stage], part.microbatch)
                for part in action.parts
            )
            # The loss runs in the backward of the last stage, but has a mark of its own (backward_step
            # without _with_model_graph).
            ends = next((part for part in parts if part.stage == last_stage and part.kind != "forward"), None)
            if self.logits is not None and pp == 0 and ends is not None and ends.kind != "backward_weight":
                yield PlannedMark(self._mark(self.logits, ends), (ends._replace(kind="loss"),))
            yield PlannedMark(self._mark(OVERLAP if len(parts) > 1 else SORTS[action.kind], parts[0]), parts)

    def _mark(self, sort: str, part: PlannedAction) -> Mark:
        # Marks of the second chunk can be numbered from m on, see the module docstring.
        first = part.chunk * self.microbatches if self.counts_on else 0
        return Mark(sort, part.chunk, first + part.microbatch)

    def variants(self, *, logits_are_marked: bool) -> list[Plan]:
        """Return the ways in which marks may represent this schedule, the most likely first."""
        if self.schedule != "dualpipev":
            return [self]
        shown = (LOGITS,) if logits_are_marked else (BACKWARD, None)
        return [replace(self, split_cooldown=split, logits=sort) for split in (False, True) for sort in shown]
