"""Ranks whose optimizer steps take longer than those of their peers, and what the iteration would save without that.

The peers of a rank run the same stages. A rank without any is compared with all others: it may have more parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from stagescope.analysis.iteration.activities import LOADING_NAMES, OPTIMIZER, name_activities, without_waits
from stagescope.analysis.prediction.outside_savings import OutsideSaving
from stagescope.model.coverage import covered_ns, unite
from stagescope.vocabulary.kinds import ACTION_KINDS
from stagescope.vocabulary.number_ranges import listed_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.replay_basis import ReplayBasis
    from stagescope.analysis.prediction.outside_savings import MeasuredIterations

    Floats = NDArray[np.float64]

LEAST_RATIO = 1.5
"""An optimizer step that takes so many times as long as those of its peers, in the median step, is slow."""

COLUMN = f"{OPTIMIZER}_ns"


class SlowOptimizers(NamedTuple):
    """Ranks with slow optimizer steps; `usual_ns` is what their peers take, `extra_ns` what each takes more.

    `has_peers` is whether every rank has others that run the same stages.
    """

    ranks: tuple[int, ...]
    usual_ns: float
    extra_ns: tuple[float, ...]
    has_peers: bool

    @property
    def change(self) -> str:
        """What a fix of them is."""
        several = len(self.ranks) > 1
        who = listed_numbers("rank", self.ranks)
        whose = "other ranks" if not self.has_peers else f"{'their' if several else 'its'} replicas"
        return f"the optimizer step{'s' * several} of {who} as short as on {whose}"

    @property
    def part_of_rank(self) -> dict[int, float]:
        """The part of the optimizer step of each rank that its peers do not need."""
        return {
            rank: extra_ns / (self.usual_ns + extra_ns)
            for rank, extra_ns in zip(self.ranks, self.extra_ns, strict=True)
        }


def find_slow_optimizers(
    spans: pl.DataFrame, actions: pl.DataFrame, meetings: pl.DataFrame
) -> SlowOptimizers | None:
    """Return the ranks whose optimizer steps are slow, None without any.

    `actions` is the table of Actions. `meetings` is the table MEETINGS: who waited within an optimizer step.
    """
    lasting = _optimizer_steps(spans, meetings)
    stages = actions.select("rank", "stage").unique().group_by("rank").agg(pl.col("stage").sort())
    known = lasting.join(stages, on="rank")
    if known["rank"].n_unique() < 2:  # noqa: PLR2004  # a rank and another one
        return None
    ranks = known.group_by("rank").agg(pl.first("stage"), own_ns=pl.median("lasting_ns")).sort("rank")
    rows = [
        (rank, own_ns, *_usual_ns(ranks.filter(pl.col("rank") != rank), stage))
        for rank, stage, own_ns in ranks.iter_rows()
    ]
    slow = [row for row in rows if row[1] >= LEAST_RATIO * row[2] > 0]
    if not slow:
        return None
    own, usual = (tuple(row[place] for row in slow) for place in (1, 2))
    extra = tuple(one - other for one, other in zip(own, usual, strict=True))
    return SlowOptimizers(
        tuple(row[0] for row in slow), max(usual), extra, all(has_peers for *_, has_peers in slow)
    )


def _optimizer_steps(spans: pl.DataFrame, meetings: pl.DataFrame) -> pl.DataFrame:
    """Return how long each rank optimized in each step, without waiting for others: rank, step and lasting_ns."""
    chosen = spans.filter(pl.col("kind") == OPTIMIZER, pl.col("step").is_not_null())
    pieces = without_waits(name_activities(chosen).with_columns(chosen["step"]), meetings)
    keys = ["rank", "step"]
    # What is inside of another piece counts once.
    before_ns = pl.col("end_ns").cum_max().shift(1).over(keys).fill_null(0)
    own_ns = (pl.col("end_ns") - pl.max_horizontal("start_ns", before_ns)).clip(0)
    lasting = pieces.sort(*keys, "start_ns").with_columns(own_ns=own_ns)
    return lasting.group_by(keys).agg(lasting_ns=pl.sum("own_ns"))


def _usual_ns(others: pl.DataFrame, stage: list[int]) -> tuple[float, bool]:
    """Return how long the optimizer step of a rank should take, given the others, and whether these are its peers."""
    peers = others.filter(pl.col("stage") == pl.lit(stage, pl.List(pl.Int32)))
    chosen = others if peers.is_empty() else peers
    return float(chosen["own_ns"].median() or 0.0), not peers.is_empty()  # type: ignore[arg-type]  # a column of numbers


def save_optimizers(
    iterations: MeasuredIterations, steps: pl.DataFrame, slow: SlowOptimizers, spans: pl.DataFrame
) -> OutsideSaving:
    """Return what is saved outside the windows if slow optimizer steps take what those of their peers do.

    `steps` are those of StepGroups. Of what a rank takes more, only that is saved in which no other rank of its
    pipeline loads data, optimizes or computes: the next step would have to wait for that as well.
    """
    of_pipeline = _awaited_ns(slow, iterations.members, spans)
    awaited_ns = max(of_pipeline["extra_ns"].to_list(), default=0.0)
    total_ns = min(_mean(iterations.outside[COLUMN] - slow.usual_ns), awaited_ns)
    late, last = (
        starts.join(of_pipeline, on="pipeline", how="left", maintain_order="left").with_columns(
            sooner_ns=pl.min_horizontal(COLUMN, pl.col("extra_ns").fill_null(0.0))
        )
        for starts in (iterations.late_starts, iterations.last_starts)
    )
    last_ns = min(_mean(last["sooner_ns"]), total_ns)
    keys = ["step", "pipeline"]
    sooner = steps.select(keys).join(
        late.select(*keys, "sooner_ns"), on=keys, how="left", maintain_order="left"
    )
    sooner_ns = sooner["sooner_ns"].fill_null(0.0).to_numpy()
    return OutsideSaving(total_ns - last_ns, last_ns, sooner_ns if sooner_ns.any() else None)


def _awaited_ns(slow: SlowOptimizers, members: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """Return what each pipeline (pipeline, extra_ns) waits for its slow optimizer steps alone, in the mean step."""
    known = spans.join(members, on="rank")
    is_work = pl.col("kind").is_in([*ACTION_KINDS, OPTIMIZER])
    loads = (pl.col("kind") == "other") & pl.col("name").fill_null("").str.contains(LOADING_NAMES)
    working = known.filter(is_work | loads)
    found: dict[int, float] = {}
    for rank, extra_ns in zip(slow.ranks, slow.extra_ns, strict=True):
        own = known.filter(pl.col("rank") == rank, pl.col("kind") == OPTIMIZER)
        if own.is_empty():
            continue
        pipeline = int(own["pipeline"][0])
        ends = own.group_by("rank", "step").agg(window_end_ns=pl.max("end_ns"))
        late = ends.with_columns(window_start_ns=pl.col("window_end_ns") - round(extra_ns))
        others = working.filter(pl.col("pipeline") == pipeline, pl.col("rank") != rank)
        united = unite(others.with_columns(rank=pl.lit(rank, others.schema["rank"])))
        awaited_ns = round(extra_ns) - covered_ns(late, united)
        found[pipeline] = max(found.get(pipeline, 0.0), _mean(awaited_ns))
    rows = {"pipeline": [*found], "extra_ns": [*found.values()]}
    return pl.DataFrame(
        rows, schema_overrides={"pipeline": members.schema["pipeline"], "extra_ns": pl.Float64}
    )


def lags_without(basis: ReplayBasis, lag_ns: Floats | NDArray[np.int64], part: Floats) -> Floats:
    """Return lags without a part of the optimizer steps of late receivers; `part` is that of each action's rank."""
    found: Floats = np.asarray(lag_ns, dtype=np.float64).copy()
    found[basis.late_row] -= part[basis.late.action] * basis.late.optimizer_ns
    return found


def _mean(values: pl.Series) -> float:
    return float(values.clip(lower_bound=0).mean() or 0.0)  # type: ignore[arg-type]  # a column of numbers
