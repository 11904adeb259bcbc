"""Classes of comparable actions: those of one rank and step with the same stage and kind.

A class is (pipeline, step, rank, stage, kind); an overlapped pair has a class of its own, by the stages and kinds of
both its actions. The ledger compares these costs:

* of every action, the mean of its class times the length of its micro-batch (microbatch_lengths.py);
* of every class, its mean without the length of its step; what the same work costs in the other pipelines; and the mean
  of that over the stages.

A mean leaves out actions that took far longer than the rest of their class, such as one during a garbage collection:
one pause of a second would otherwise make its stage 35 % longer. What they took beyond the mean is jitter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.graph.action_cells import codes_of
from stagescope.analysis.idle.data_lengths import Classes, find_data_lengths
from stagescope.analysis.idle.usual_costs import find_usual_costs
from stagescope.model.tables import KindType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stagescope.analysis.graph.actions import Actions
    from stagescope.analysis.idle.data_lengths import UsualLengths

    Integers = NDArray[np.int64]
    Times = NDArray[np.float64] | NDArray[np.int64]

FEWEST_PEERS = 2
"""An action can be called slow only if at least this many pipelines run the same work."""

WORK = ["stage", "kind", "partner_stage", "partner_kind"]

SURE_DEVIATIONS = 4.0
"""If an even number of pipelines runs the same work, the faster one of the two in the middle is the reference if these
differ by so many standard errors: half of the pipelines are slow then, as both ranks of a tensor-parallel pair are. A
mean of both is a reference for neither, but the smaller of two equal means is too small by chance.
"""


@dataclass(frozen=True)
class ActionClasses:
    """The classes in `table`, one row each, and for every action the row of its class in `of_action`.

    Columns of `table`: pipeline, step, rank, stage, kind, partner_stage and partner_kind (null unless an overlapped
    pair), action_count, mean_ns (without outliers), error_ns (its standard error), balanced_ns (mean_ns if the step had
    as much work as those of the other pipelines), peers (pipelines with the same work in that step, this one included),
    peer_ns (median of their balanced_ns, of two in the middle the smaller one if they differ; balanced_ns without
    peers), stage_ns (mean of peer_ns over all stages of the pipeline for that kind, weighted by action_count, so that
    the total is preserved).

    `length_of_action` is the factor of the length of its micro-batch for every action, 1 without data imbalance.
    `usual` is what was learned about these lengths, or what was given.
    """

    table: pl.DataFrame
    of_action: Integers
    length_of_action: NDArray[np.float64]
    usual: UsualLengths

    def costs_ns(self, name: str) -> NDArray[np.float64]:
        """Return a column of `table` in nanoseconds for every action."""
        costs: NDArray[np.float64] = self.table[name].to_numpy()[self.of_action]
        return costs

    def fitted_ns(self) -> NDArray[np.float64]:
        """Return the mean of its class times the length of its micro-batch for every action."""
        return self.costs_ns("mean_ns") * self.length_of_action


def find_action_classes(
    actions: Actions, duration_ns: Times, usual: UsualLengths | None = None
) -> ActionClasses:
    """Return the classes of the actions and their costs, given a duration for every action.

    `usual` is what is known about the lengths of data in the run; None: it is learned from these actions.
    """
    alone = measure_classes(actions, duration_ns, usual)
    return replace(alone, table=compare_classes(alone.table))


def measure_classes(actions: Actions, duration_ns: Times, usual: UsualLengths | None = None) -> ActionClasses:
    """Return what find_action_classes does, without what depends on other pipelines.

    The last columns of its table are data_weight and data_load, of which `compare_classes` makes the others.
    """
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
    duration_ns = np.asarray(duration_ns, dtype=np.float64)
    costs = find_usual_costs(duration_ns, of_action, len(present), _number_microbatches(table))
    table = pl.concat(
        [
            table.select(*(pl.col(name).gather(example) for name in ("pipeline", "step", "rank"))),
            works.select(pl.all().gather(work[example])),
            pl.DataFrame(
                {"action_count": counts[present], "mean_ns": costs.mean_ns, "error_ns": costs.error_ns}
            ),
        ],
        how="horizontal",
    )
    lengths = find_data_lengths(actions, Classes(table, of_action, costs), duration_ns, usual)
    table = table.with_columns(
        data_weight=pl.Series(lengths.weight_of_class, dtype=pl.Float64),
        data_load=pl.Series(lengths.load_of_class, dtype=pl.Float64),
    )
    return ActionClasses(table, of_action, lengths.of_action, lengths.usual)


def compare_classes(table: pl.DataFrame) -> pl.DataFrame:
    """Return the table of find_action_classes, given that of measure_classes for all pipelines of some steps."""
    surplus = (pl.col("data_load") / pl.col("data_load").mean().over("step")).log()
    balanced_ns = pl.col("mean_ns") / (pl.col("data_weight") * surplus).exp()
    return _with_peers(table.with_columns(balanced_ns=balanced_ns).drop("data_weight", "data_load"))


def _number_microbatches(table: pl.DataFrame) -> Integers:
    """Return a number per pipeline, step and micro-batch for every action; `table` is sorted by pipeline and step."""
    microbatch = pl.col("microbatch").cast(pl.Int64)
    step = pl.struct("pipeline", "step").rle_id().cast(pl.Int64)
    numbers: Integers = table.select(step * (microbatch.max() + 1) + microbatch).to_series().to_numpy()
    return numbers


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
    needs little memory. A table of all ranks and works would take 14 GB for 20,000 ranks of one pipeline.
    """
    pair = ranks.astype(np.int64) * works + work
    done = np.sort(pl.Series(pair).unique().to_numpy())
    rank = done // works
    first = np.searchsorted(rank, rank)
    number = np.arange(len(done)) - first
    return number[codes_of(pair, done)], int(number.max(initial=0)) + 1


def _with_peers(table: pl.DataFrame) -> pl.DataFrame:
    """Return the classes with the cost of the same work in other pipelines, and over the stages of one pipeline."""
    # In a bidirectional schedule two ranks of a pipeline run the same stage: the n-th is compared with the n-th.
    copies = pl.int_range(pl.len()).over("pipeline", "step", *WORK)
    same_work = ["step", *WORK, "copy"]
    same_kind = ["pipeline", "step", "kind", "partner_kind"]
    return (
        table.with_columns(copy=copies)
        .with_columns(peers=pl.len().over(same_work))
        .pipe(_with_middles, same_work)
        .with_columns(
            peer_ns=pl.when(pl.col("peers") < FEWEST_PEERS)
            .then("balanced_ns")
            .when(pl.col("most") - pl.col("least") > SURE_DEVIATIONS * pl.col("doubt"))
            .then("least")
            .otherwise((pl.col("least") + pl.col("most")) / 2)
        )
        .with_columns(
            stage_ns=(pl.col("peer_ns") * pl.col("action_count")).sum().over(same_kind)
            / pl.sum("action_count").over(same_kind)
        )
        .drop("copy", "least", "most", "doubt")
    )


def _with_middles(table: pl.DataFrame, same_work: list[str]) -> pl.DataFrame:
    """Return the table with the two costs in the middle of the same work, equal ones of an odd number.

    They are least and most; doubt is the standard error of their difference.
    """
    least, most = (getattr(pl.col("balanced_ns"), name)().over(same_work) for name in ("min", "max"))
    # The errors of two classes add as squares.
    doubt = (FEWEST_PEERS * (pl.col("error_ns") ** 2).mean().over(same_work)).sqrt()
    table = table.with_columns(least=least, most=most, doubt=doubt)
    many = table.filter(pl.col("peers") > FEWEST_PEERS)
    if many.is_empty():
        return table
    # Of more than two, the middle takes long.
    low, high = (pl.col("balanced_ns").quantile(0.5, which) for which in ("lower", "higher"))
    middles = many.group_by(same_work).agg(low=low, high=high)
    found = table.join(middles, on=same_work, how="left", maintain_order="left", nulls_equal=True)
    middle = {"least": pl.coalesce("low", "least"), "most": pl.coalesce("high", "most")}
    return found.with_columns(**middle).drop("low", "high")
