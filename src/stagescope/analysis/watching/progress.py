"""How far each rank of a running training is, from the spans that are recorded so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.vocabulary.kinds import ACTION_KINDS, COMM, COMPUTE, label

if TYPE_CHECKING:
    from stagescope.model import Timeline


class Progress(NamedTuple):
    """The last action or transfer that a rank recorded, and how many steps it is behind the furthest rank.

    `action` is in the notation of the field (``F2.1``), or the kind of a transfer or collective; `end_ns` is on the
    aligned clock. `behind` counts the steps after its own that another rank had ended by then. Processes store spans at
    different moments, so what others recorded later is no sign that this rank is slow.
    """

    rank: int
    step: int | None
    action: str
    end_ns: int
    behind: int


def measure_progress(timeline: Timeline) -> dict[int, Progress]:
    """Return the progress of each rank with an action or transfer."""
    own = timeline.spans.filter(pl.col("lane").is_in([COMPUTE, COMM]))
    last = own.group_by("rank").agg(
        pl.col("step", "kind", "stage", "microbatch").sort_by("end_ns").last(), pl.max("end_ns")
    )
    of_rank = own.drop_nulls("step").group_by("rank", "step").agg(pl.max("end_ns"))
    # The last step of each rank may go on.
    ended = of_rank.filter(pl.col("step") < pl.max("step").over("rank")).sort("end_ns")
    ended = ended.select("end_ns", furthest=pl.col("step").cum_max())
    placed = last.sort("end_ns").join_asof(ended, on="end_ns", strategy="backward").sort("rank")
    columns = placed.select("rank", "step", "kind", "stage", "microbatch", "end_ns", "furthest")
    return {
        rank: Progress(rank, step, _action(kind, stage, microbatch), end_ns, _behind(step, furthest))
        for rank, step, kind, stage, microbatch, end_ns, furthest in columns.iter_rows()
    }


def _behind(step: int | None, furthest: int | None) -> int:
    return 0 if step is None or furthest is None else max(0, furthest - step)


def _action(kind: str, stage: int | None, microbatch: int | None) -> str:
    return label(kind, stage, microbatch) if kind in ACTION_KINDS else kind.replace("_", " ")
