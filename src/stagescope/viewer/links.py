"""The dependency links between recorded actions: all of them for a page, those of a micro-batch for the server.

The rule is `schedules.dependencies`; this module only finds the recorded actions that it names. Actions belong
together within one pipeline, step and micro-batch, and only direct predecessors are linked.
"""

from __future__ import annotations

import polars as pl

from stagescope.schedules.dependencies import RULES
from stagescope.vocabulary.kinds import ACTION_KINDS, KINDS

MOST_SURPLUS_PAIRS = 4_000_000
"""Candidate pairs beyond two per action that are still compared, in about two seconds.

The rule gives an action at most two producers. There are more only where several ranks run the same action, and very
many only if the parallel layout was not recorded: then every rank looks like a replica of every other.
"""

PHASES = {"F": "F", "B": "B", "I": "B", "W": "W"}
"""Whole backwards and input-gradient backwards are one phase: each provides the gradient of its stage."""

ACTION_PHASES = {kind.code: PHASES[kind.letter] for kind in KINDS if kind.name in ACTION_KINDS}
GROUP = ("pipeline", "step", "microbatch")
ACTION_COLUMNS = ("id", "row", "kind", "step", "stage", "microbatch")


class TooManyPairsError(Exception):
    """More candidate pairs than MOST_SURPLUS_PAIRS allows."""


def find_pairs(actions: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return `from` and `to`: ids of an action and of one that needs it, in an order that compresses well.

    `actions` has the columns ACTION_COLUMNS, with `kind` as a code; rows of other kinds and those without a stage or
    micro-batch are ignored. `ranks` has `row`, `pipeline`, `tp` and `cp`. Where several ranks run the same action
    (tensor or context parallelism), the one on the same rank counts, else those at the same place in tp and cp, else
    all. Raises TooManyPairsError.
    """
    phased = _with_phase(actions, ranks)
    candidates = _candidates(phased)
    if candidates.is_empty():
        return pl.DataFrame(schema={"from": pl.Int64, "to": pl.Int64})
    # A preferred producer that was not recorded (the last stage has none) is replaced by the next one of the rule.
    preferred = candidates.filter(pl.col("priority") == pl.col("priority").min().over("to"))
    single = pl.len().over("to") == 1
    same_rank = pl.col("row_from") == pl.col("row")
    same_place = (pl.col("tp_from") == pl.col("tp")) & (pl.col("cp_from") == pl.col("cp"))
    nearness = pl.when(single | same_rank).then(0).when(same_place).then(1).otherwise(2)
    ranked = preferred.with_columns(nearness=nearness)
    nearest = ranked.filter(pl.col("nearness") == pl.col("nearness").min().over("to"))
    # By row and phase, both ids rise by small steps: deflated, a link takes about half a byte.
    return nearest.sort("row", "phase", "to", "from").select("from", "to")


def _with_phase(actions: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """Return the actions that can be linked, with phase, pipeline, tp and cp; unknown coordinates are -1."""
    known = actions.filter(
        pl.col("kind").is_in(list(ACTION_PHASES))
        & pl.all_horizontal(pl.col("stage", "microbatch").is_not_null())
    )
    coordinates = ranks.select(
        pl.col("row").cast(pl.Int64), pl.col("pipeline", "tp", "cp").cast(pl.Int64).fill_null(-1)
    )
    return known.select(
        pl.col("id", "row").cast(pl.Int64),
        pl.col("kind").replace_strict(ACTION_PHASES, return_dtype=pl.String).alias("phase"),
        pl.col("stage", "microbatch").cast(pl.Int64),
        pl.col("step").cast(pl.Int64).fill_null(-1),
    ).join(coordinates, on="row", how="left")


def _candidates(phased: pl.DataFrame) -> pl.DataFrame:
    """Return every pair that the rule allows, with the priority of the rule's line, 0 first."""
    wanted = phased.join(_rule_table(), on="phase").with_columns(
        producer_stage=pl.col("stage") + pl.col("stage_offset")
    )
    producers = phased.select(
        *GROUP, pl.col("phase").alias("producer"), pl.col("stage").alias("producer_stage"),
        pl.col("id").alias("from"), pl.col("row", "tp", "cp").name.suffix("_from"),
    )  # fmt: skip
    keys = [*GROUP, "producer", "producer_stage"]
    sizes = producers.group_by(keys).len("producers")
    pair_count = wanted.join(sizes, on=keys)["producers"].sum()
    if pair_count - 2 * phased.height > MOST_SURPLUS_PAIRS:
        raise TooManyPairsError
    return wanted.rename({"id": "to"}).join(producers, on=keys)


def _rule_table() -> pl.DataFrame:
    """Return the dependency rule by phase: producer, stage_offset, and priority in the order of the rule."""
    rows = {
        (PHASES[consumer], PHASES[rule.producers[0]], rule.stage_offset): place
        for place, rule in reversed(list(enumerate(RULES)))
        for consumer in rule.consumers
    }
    return pl.DataFrame(
        [(*key, place) for key, place in rows.items()],
        schema={"phase": pl.String, "producer": pl.String, "stage_offset": pl.Int64, "priority": pl.Int64},
        orient="row",
    )
