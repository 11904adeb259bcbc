"""How much work one micro-batch is on each stage, and how much more than on the other stages.

The work of a stage is that of its usual rank: per kind of action, the median over its ranks of what the kind usually
takes there, without outliers among actions and steps. One slow replica among several does not make a slow stage. Of two
ranks the faster one counts.

A stage is compared with the mean of the other stages, per kind of action; the sum over all kinds is its excess. It is
the one number about a stage that every text shows. Actions in overlapped pairs do not count for it: which of the two
took long is unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stagescope.analysis.statistics.estimates import estimate_means
from stagescope.analysis.statistics.group_quantiles import GroupedValues
from stagescope.analysis.statistics.timed_actions import ACTIONS_OF_A_PAIR
from stagescope.model.large_tables import chosen_rows, reduced, united_rows
from stagescope.model.lazy import TableParts
from stagescope.model.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from stagescope.analysis.statistics.action_samples import ActionSamples

    Floats = NDArray[np.float64]

STAGE_WORK = Table(
    "stage_work",
    "one stage, as its usual rank runs it",
    ("stage",),
    (
        Column("stage", pl.Int32, "", "Global stage."),
        Column(
            "microbatches",
            pl.UInt32,
            "",
            "Forwards on all its ranks, or backwards if there are more.",
        ),
        Column("forward_ns", pl.Int64, "ns", "Forward work per micro-batch."),
        Column("backward_ns", pl.Int64, "ns", "Full and input-gradient backward work per micro-batch."),
        Column("weight_ns", pl.Int64, "ns", "Weight-gradient work of split backwards per micro-batch."),
        Column("work_ns", pl.Int64, "ns", "All work per micro-batch; the halves of a pair count half each."),
        Column(
            "work_to_others",
            pl.Float64,
            "",
            "Work over the mean of the other stages, without overlapped pairs; null: no other stage to compare with.",
            nullable=True,
        ),
    ),
)

HALVES = {"forward_ns": ("forward",), "backward_ns": ("backward", "backward_input")}
PARTS = {**HALVES, "weight_ns": ("backward_weight",)}


@dataclass(frozen=True)
class StageExcess:
    """How much more work the stages have. Arrays are stages, or stages x samples.

    `table` is STAGE_WORK. `shift` and `fast` are the logarithms of the ratio to the other stages in each sample, of all
    actions and of the fast ones. `kind` is the kind of action that adds most, `ranks` how many ranks run the stage,
    `only_rank` which one if there is one, `busy_ns` the time of one rank, and `span_count` the actions.
    """

    table: pl.DataFrame
    shift: Floats
    fast: Floats
    kind: list[str]
    ranks: NDArray[np.int64]
    only_rank: list[int | None]
    busy_ns: Floats
    span_count: NDArray[np.int64]


def measure_stage_excess(samples: ActionSamples) -> StageExcess:
    """Return the work of all stages that ran whole micro-batches, and their excess over the others."""
    holders = _holders(samples.parts)
    stages = holders["stage"]
    has_stage = pl.col("stage").is_in(stages.implode())
    parts = TableParts(samples.parts, lambda rows: chosen_rows(rows, has_stage))
    classes = united_rows(parts, ["kind", "is_pair"]).sort("kind", "is_pair")
    size = (stages.len(), classes.height, samples.sampling.count)
    usual, counts = _usual_ns(parts, stages, classes, samples.sampling.count)
    microbatches = holders["microbatches"].to_numpy().astype(float)
    charge = np.where(classes["is_pair"].to_numpy(), 1 / ACTIONS_OF_A_PAIR, 1.0)
    share = charge[None, :] * counts / np.maximum(microbatches, 1)[:, None]
    work_ns = share * np.nan_to_num(usual)
    alone = _shares_alone(classes, counts, microbatches)
    to_others, adds_ns = _ratios(usual[:, :, None], alone)
    kind = [str(classes["kind"][int(index)]) for index in adds_ns[:, :, 0].argmax(axis=1)] if size[1] else []
    rows = {
        name: work_ns[:, classes["kind"].is_in(list(kinds)).to_numpy()].sum(axis=1)
        for name, kinds in PARTS.items()
    }
    work = holders.select("stage", "microbatches").with_columns(
        **{name: pl.Series(np.rint(values)) for name, values in rows.items()},
        work_ns=pl.Series(np.rint(work_ns.sum(axis=1))),
        work_to_others=pl.Series(to_others[:, 0], nan_to_null=True),
    )
    shift, fast = (
        np.log(_ratios(_cube(parts, name, stages, classes, size), alone)[0])
        for name in ("usual_ns", "fast_ns")
    )
    ranks = holders["ranks"].to_numpy().astype(np.int64)
    return StageExcess(
        work.select(pl.col(column.name).cast(column.dtype) for column in STAGE_WORK.columns),
        shift,
        fast,
        kind,
        ranks,
        [rank if count == 1 else None for rank, count in holders.select("rank", "ranks").iter_rows()],
        work_ns.sum(axis=1) * microbatches / np.maximum(ranks, 1) / max(len(samples.sampling.steps), 1),
        holders["span_count"].to_numpy().astype(np.int64),
    )


def _shares_alone(classes: pl.DataFrame, counts: Floats, microbatches: Floats) -> Floats:
    """Return actions per micro-batch, where those that ran alone represent those of the same kind in pairs."""
    kinds, is_pair = classes["kind"].cast(pl.String).to_numpy(), classes["is_pair"].to_numpy()
    same = kinds[:, None] == kinds[None, :]
    found: Floats = (
        np.where(is_pair[None, :] | (counts == 0), 0.0, counts @ same) / np.maximum(microbatches, 1)[:, None]
    )
    return found


def _holders(parts: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return per stage its ranks and micro-batches; weight gradients alone do not show how many ran."""
    count = pl.col("action_count").cast(pl.Int64)
    of_kinds = {name: count.filter(pl.col("kind").is_in(list(kinds))).sum() for name, kinds in HALVES.items()}
    of_ranks = (each.group_by("stage", "rank").agg(**of_kinds, span_count=count.sum()) for each in parts)
    return (
        reduced(of_ranks, lambda rows: rows.group_by("stage", "rank").agg(pl.sum(*of_kinds, "span_count")))
        .group_by("stage")
        .agg(
            pl.max_horizontal(pl.sum(*of_kinds)).alias("microbatches"),
            pl.min("rank"),
            ranks=pl.col("rank").n_unique().cast(pl.Int64),
            span_count=pl.sum("span_count"),
        )
        .filter(pl.col("microbatches") > 0)
        .sort("stage")
    )


def _usual_ns(
    parts: Iterable[pl.DataFrame], stages: pl.Series, classes: pl.DataFrame, count: int
) -> tuple[Floats, Floats]:
    """Return the usual time of each class on each stage, NaN if it has none, and the number of its actions."""
    key = ["stage", "kind", "is_pair"]
    counted = pl.col("action_count").cast(pl.Int64).sum()
    of_ranks = reduced(parts, lambda rows: rows.group_by(*key, "rank").agg(counted))
    rows = of_ranks.select(*key, "rank").with_row_index("row")
    series = np.full((rows.height, count), np.nan)
    for each in parts:
        row = each.select(*key, "rank").join(rows, on=[*key, "rank"], maintain_order="left")["row"]
        series[row.to_numpy(), each["sample"].to_numpy()] = each["usual_ns"].to_numpy()
    usual = rows.with_columns(usual_ns=pl.Series(estimate_means(series).value))
    counts = of_ranks.group_by(key).agg(pl.sum("action_count"))
    merged = usual.group_by(key).agg(pl.col("usual_ns").quantile(0.5, "lower")).join(counts, on=key)
    found = np.full((2, len(stages), classes.height), np.nan)
    place = _place(merged, stages, classes)
    found[0][place], found[1][place] = merged["usual_ns"].to_numpy(), merged["action_count"].to_numpy()
    return found[0], np.nan_to_num(found[1])


def _cube(
    parts: Iterable[pl.DataFrame],
    name: str,
    stages: pl.Series,
    classes: pl.DataFrame,
    size: tuple[int, int, int],
) -> Floats:
    """Return a column of the samples as stages x classes x samples, of the usual rank of each stage."""
    cube = np.full(size, np.nan)
    for rows in parts:
        stage, number = _place(rows, stages, classes)
        cell = np.ravel_multi_index((stage, number, rows["sample"].to_numpy().astype(np.int64)), size)
        present, group = np.unique(cell, return_inverse=True)
        cube.ravel()[present] = GroupedValues(rows[name].to_numpy(), group, len(present)).lower_median()
    return cube


def _place(
    table: pl.DataFrame, stages: pl.Series, classes: pl.DataFrame
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    number = classes.with_row_index("class")
    found = table.select("kind", "is_pair").join(number, on=["kind", "is_pair"], maintain_order="left")[
        "class"
    ]
    return stages.search_sorted(table["stage"]).to_numpy().astype(np.int64), found.to_numpy().astype(np.int64)


def _ratios(costs: Floats, share: Floats) -> tuple[Floats, Floats]:
    """Return work over what the others need for the same actions (stages x samples), and what each class adds.

    `costs` is stages x classes x samples. Classes that no other stage has are left out; NaN if that leaves none.
    """
    known = np.isfinite(costs)
    present = np.where(known, costs, 0.0)
    others = known.sum(axis=0)[None] - known
    reference = (present.sum(axis=0)[None] - present) / np.maximum(others, 1)
    weight = share[:, :, None] * (known & (others > 0))
    own, usual = (weight * present).sum(axis=1), (weight * reference).sum(axis=1)
    ratio: Floats = np.where(usual > 0, own / np.where(usual > 0, usual, 1.0), np.nan)
    return ratio, weight * (present - reference)
