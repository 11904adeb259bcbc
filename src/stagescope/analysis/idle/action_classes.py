"""Classes of comparable actions: those of one rank and step with the same stage and kind.

A class is (pipeline, step, rank, stage, kind); an overlapped pair has a class of its own, by the stages and kinds of
both its actions. The ledger compares three costs per class: the mean of its own actions, the median over the pipelines
that do the same work, and the mean over the stages.
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
"""An action can be called slow only if at least this many pipelines run the same work."""

WORK = ["stage", "kind", "partner_stage", "partner_kind"]


@dataclass(frozen=True)
class ActionClasses:
    """The classes in `table`, one row each, and for every action the row of its class in `of_action`.

    Columns of `table`: pipeline, step, rank, stage, kind, partner_stage and partner_kind (null unless an overlapped
    pair), action_count, mean_ns, peers (pipelines with the same work in that step, this one included), peer_ns (median
    of their means; mean_ns without peers), stage_ns (mean of peer_ns over all stages of the pipeline for that kind,
    weighted by action_count, so that the total is preserved).
    """

    table: pl.DataFrame
    of_action: Integers

    def costs_ns(self, name: str) -> NDArray[np.float64]:
        """Return a column of `table` in nanoseconds for every action."""
        costs: NDArray[np.float64] = self.table[name].to_numpy()[self.of_action]
        return costs


def find_action_classes(actions: Actions, duration_ns: Times) -> ActionClasses:
    """Return the classes of the actions and their costs, given a duration for every action."""
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
    """Return all kinds of work (stage, kind, partner) and the row of every action in them."""
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
    """Return the number of every action's work among the works of its rank, and how many a rank has at most.

    A rank does few of all works. Numbering them per rank keeps the keys (step, rank, work) dense, so that bincount
    needs little memory.
    """
    known = np.unique(ranks).astype(np.int64)
    rank = codes_of(ranks, known)
    done = np.zeros((len(known), works), dtype=np.int64)
    done[rank, work] = 1
    numbers = np.cumsum(done, axis=1) - 1
    return numbers[rank, work], int(done.sum(axis=1).max(initial=1))


def _with_peers(table: pl.DataFrame) -> pl.DataFrame:
    """Return the classes with the cost of the same work in other pipelines, and over the stages of one pipeline."""
    # In a bidirectional schedule two ranks of a pipeline run the same stage: the n-th is compared with the n-th.
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
