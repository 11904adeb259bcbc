"""Sums over steps of what makes ranks idle, from which culprits are named (culprits.py).

Sums of floating-point numbers depend on their order, and parallel sums have another one in every call. So all sums are
those of whole picoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.vocabulary.causes import CAUSE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable

PS_PER_NS = 1000


class CausesOfSteps(NamedTuple):
    """The table ITERATIONS with a row per step, and tables of the ledger, of which the same steps count."""

    iterations: pl.DataFrame
    steps: pl.DataFrame
    ranks: pl.DataFrame
    origins: pl.DataFrame


class Sums(NamedTuple):
    """Sums over steps, of which those of other steps may be added (_added).

    `origins` has added_ps per pipeline, cause, rank and peer, `own` the own work per pipeline and rank, `later` by how
    much ranks made the last pipeline later than the others (later_ps), per pipeline and rank, and `causes` all causes
    of every rank.
    """

    origins: pl.DataFrame
    own: pl.DataFrame
    later: pl.DataFrame
    causes: pl.DataFrame


KEYS_OF = {
    "origins": ("pipeline", "cause", "rank", "peer"),
    "own": ("pipeline", "rank"),
    "later": ("pipeline", "rank"),
    "causes": ("pipeline", "rank"),
}
"""What each table of Sums is summed per; its other columns are sums."""


class CauseSums(NamedTuple):
    """What name_culprits needs of all parts: sums over their steps, None without parts, and the number of steps.

    `last` has the pipeline that ended last in each step: step and culprit_pipeline.
    """

    sums: Sums | None
    steps: int
    last: pl.DataFrame


def sum_causes(parts: Iterable[CausesOfSteps], members: pl.DataFrame) -> CauseSums:
    """Return what name_culprits needs of all `parts`; see find_culprits.

    Each is added to the sums of those before it, so that the tables of a large run are never in memory as a whole.
    """
    places = members.with_columns(place=pl.col("rank").rank("dense").over("pipeline"))
    sums: Sums | None = None
    steps, every = 0, [pl.DataFrame(schema={"step": pl.Int32, "culprit_pipeline": pl.Int32})]
    for part in parts:
        last = _last_pipelines(part.iterations)
        found = _sums_of(part, last, places)
        sums = found if sums is None else _added(sums, found)
        steps += part.iterations["step"].n_unique()
        every.append(last)
    return CauseSums(sums, steps, pl.concat(every))


def in_ps(name: str) -> pl.Expr:
    """Return a column in ns as whole picoseconds, of which 64 bits hold 106 days: ranks together are idle longer."""
    return (pl.col(name) * PS_PER_NS).round().cast(pl.Int128)


def _last_pipelines(iterations: pl.DataFrame) -> pl.DataFrame:
    """Return the pipeline that ends last in each step: step and culprit_pipeline."""
    last = iterations.filter("is_last").select("step", culprit_pipeline="pipeline")
    return last.unique("step", keep="first", maintain_order=True)


def _sums_of(part: CausesOfSteps, last: pl.DataFrame, places: pl.DataFrame) -> Sums:
    """Return the sums over the steps of a part; `places` are the members with their place in the pipeline."""
    iterations = part.iterations
    chosen = pl.col("step").is_in(iterations["step"].unique().implode())
    origins = part.origins.filter(chosen)
    return Sums(
        _summed_in_ps(origins, KEYS_OF["origins"]),
        _own_work(part.steps.filter(chosen), part.ranks.filter(chosen)),
        _later(last, origins, places),
        iterations.group_by("pipeline", "rank").agg(pl.col(CAUSE_COLUMNS).sum()),
    )


def _summed_in_ps(origins: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Return the sums of added_ns (added_ps) over some keys."""
    added_ps = in_ps("added_ns").sum().alias("added_ps")
    return origins.lazy().group_by(keys).agg(added_ps).collect(engine="streaming")


def _added(one: Sums, other: Sums) -> Sums:
    return Sums(
        *(
            pl.concat(both).group_by(KEYS_OF[name]).agg(pl.exclude(KEYS_OF[name]).sum())
            for name, both in zip(Sums._fields, zip(one, other, strict=True), strict=True)
        )
    )


def _later(last: pl.DataFrame, origins: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return by how much every rank of a pipeline (pipeline, rank) makes it later than the others where it is last.

    `last` has the last pipeline of each step. Ranks of different pipelines are compared by their place in the pipeline.
    """
    others = max(places["pipeline"].n_unique() - 1, 1)
    added = _summed_in_ps(origins, ("step", "pipeline", "rank")).join(places, on=["pipeline", "rank"])
    others_ps = pl.col("added_ps").sum().over("step", "place") - pl.col("added_ps")
    mean_ps = (others_ps / others).round().cast(pl.Int128)
    return (
        added.with_columns(later_ps=pl.col("added_ps") - mean_ps)
        .join(last, left_on=["step", "pipeline"], right_on=["step", "culprit_pipeline"])
        .group_by("pipeline", "rank")
        .agg(pl.sum("later_ps"))
    )


def _own_work(steps: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return per rank (pipeline, rank) the work that causes add to it, as idle time that they take from it."""
    names = CAUSE_COLUMNS[1:-1]  # the schedule bubble and unattributed time add no work
    of_steps = steps.lazy().select("pipeline", "step", *names)
    both = ranks.lazy().join(of_steps, on=["pipeline", "step"], suffix="_step")
    parts = [(pl.col(name) - pl.col(f"{name}_step")).sum().alias(name.removesuffix("_ns")) for name in names]
    return both.group_by("pipeline", "rank").agg(parts).collect(engine="streaming")
