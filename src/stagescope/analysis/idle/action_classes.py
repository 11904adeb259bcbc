"""Classes of comparable work: the actions of one rank and step that do the same on the same stage.

A class is (pipeline, step, rank, stage, kind); an overlapped pair is of a class of its own, by the stages and kinds
of both its actions. What its actions cost on average, what the same work costs in the other pipelines, and what
the stages cost on average, are the three costs that the ledger compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.action_cells import codes_of
from stagescope.model.tables import KindType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions

    Integers = NDArray[np.int64]
    Times = NDArray[np.float64] | NDArray[np.int64]

FEWEST_PEERS = 2
"""In how many pipelines a work must occur before one of them can be called slow."""

WORK = ["stage", "kind", "partner_stage", "partner_kind"]


@dataclass(frozen=True)
class ActionClasses:
    """One row per class in `table`, and in `of_action` the row of every action's class.

    Columns of `table`: pipeline, step, rank, stage, kind, partner_stage and partner_kind (null unless an overlapped
    pair), action_count (how many actions), mean_ns, peers (in how many pipelines the same work was done in that step,
    this one included), peer_ns (median of their means; mean_ns where there is no other), stage_ns (mean peer_ns of
    an action of that kind over all stages of the pipeline, weighted by action_count so that it keeps their sum).
    """

    table: pl.DataFrame
    of_action: Integers

    def costs_ns(self, name: str) -> NDArray[np.float64]:
        """Return what one of the columns in nanoseconds says for every action."""
        costs: NDArray[np.float64] = self.table[name].to_numpy()[self.of_action]
        return costs


def find_action_classes(actions: Actions, duration_ns: Times) -> ActionClasses:
    """Return the classes of the actions, with what they cost given how long each action took."""
    table = actions.table
    works, work = _find_works(actions)
    turn = np.cumsum(table["place"].to_numpy() == 0) - 1  # one per pipeline, step and rank
    local, width = _number_within_ranks(table["rank"].to_numpy(), work, works.height)
    key = turn * width + local
    counts = np.bincount(key)
    present = np.flatnonzero(counts)
    number = np.zeros(len(counts), dtype=np.int64)
    number[present] = np.arange(len(present))
    of_action = number[key]
    example = np.zeros(len(present), dtype=np.int64)
    example[of_action] = np.arange(table.height)
    sums_ns = np.bincount(key, weights=duration_ns)[present]
    table = pl.concat(
        [
            table.select(*(pl.col(name).gather(example) for name in ("pipeline", "step", "rank"))),
            works.select(pl.all().gather(work[example])),
            pl.DataFrame({"action_count": counts[present], "mean_ns": sums_ns / counts[present]}),
        ],
        how="horizontal",
    )
    return ActionClasses(_with_peers(table), of_action)


def _find_works(actions: Actions) -> tuple[pl.DataFrame, Integers]:
    """Return the works that there may be, and the row of every action's; pairs are told apart by their partners."""
    table, kinds = actions.table, KindType.categories
    stages = table["stage"].unique().sort()
    work = codes_of(table["stage"].to_numpy(), stages.to_numpy().astype(np.int64)) * len(kinds)
    work += table["kind"].to_physical().to_numpy()
    alone = pl.DataFrame(
        {
            "stage": np.repeat(stages.to_numpy(), len(kinds)),
            "kind": pl.Series(kinds.to_list() * len(stages), dtype=KindType),
        }
    ).with_columns(partner_stage=pl.lit(None, pl.Int32), partner_kind=pl.lit(None, KindType))
    partners = actions.partners
    if partners.is_empty():
        return alone, work
    paired = table.select(pl.col("stage", "kind").gather(partners["action"])).with_columns(
        partner_stage=partners["stage"], partner_kind=partners["kind"]
    )
    together = paired.unique(maintain_order=True).with_row_index("work", offset=alone.height)
    found = paired.join(together, on=WORK, how="left", maintain_order="left")["work"]
    work[partners["action"].to_numpy()] = found.to_numpy()
    return pl.concat([alone, together.select(WORK)]), work


def _number_within_ranks(ranks: NDArray[np.int32], work: Integers, works: int) -> tuple[Integers, int]:
    """Return the number of every action's work among those of its rank, and how many a rank has at most.

    Few works are done by one rank, so that numbers of (step, rank, work) count through without large holes.
    """
    known = np.unique(ranks).astype(np.int64)
    rank = codes_of(ranks, known)
    done = np.zeros((len(known), works), dtype=np.int64)
    done[rank, work] = 1
    numbers = np.cumsum(done, axis=1) - 1
    return numbers[rank, work], int(done.sum(axis=1).max(initial=1))


def _with_peers(table: pl.DataFrame) -> pl.DataFrame:
    """Return the classes with what the same work costs in the pipelines, and over the stages of one."""
    # In a bidirectional schedule two ranks of a pipeline run the same stage: the first has the first as its peers.
    copies = pl.int_range(pl.len()).over("pipeline", "step", *WORK)
    same_work = ["step", *WORK, "copy"]
    enough = pl.col("peers") >= FEWEST_PEERS
    same_kind = ["pipeline", "step", "kind", "partner_kind"]
    return (
        table.with_columns(copy=copies)
        .with_columns(peers=pl.len().over(same_work), median_ns=pl.median("mean_ns").over(same_work))
        .with_columns(peer_ns=pl.when(enough).then("median_ns").otherwise("mean_ns"))
        .with_columns(
            stage_ns=(pl.col("peer_ns") * pl.col("action_count")).sum().over(same_kind)
            / pl.sum("action_count").over(same_kind)
        )
        .drop("copy", "median_ns")
    )
