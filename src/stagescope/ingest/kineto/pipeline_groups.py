"""Find the process group of each pipeline, and the position of each rank in it.

torch 2.13.0 runs stage i on rank i % n of the pipeline's group, except for V-shaped schedules
(torch/distributed/pipelining/_utils.py, `generate_stage_to_rank_mapping`). Stages stated in annotations take
precedence.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kinds import RECEIVES, SENDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.ingest.kineto.rank_trace import RankTrace

Groups = dict[int, tuple[int, ...]]


def pipeline_groups(traces: Mapping[int, RankTrace]) -> Groups:
    """Return for each rank the ranks of its pipeline in order; ranks with a missing or ambiguous group are omitted.

    A pipeline may have ranks without a trace, if no group of which every rank has one can be the pipeline.
    """
    stages = {rank: frozenset(trace.actions["stage"].drop_nulls()) for rank, trace in traces.items()}
    roles = {rank: _role(trace) for rank, trace in traces.items()}
    found: Groups = {}

    # Each rank lists the group of all ranks: looked at again for each, n ranks take n * n.
    @cache
    def fits(group: tuple[int, ...]) -> bool:
        return traces.keys() >= set(group) and _fits(group, stages, roles)

    @cache
    def fits_in_part(group: tuple[int, ...], world_size: int | None) -> bool:
        return _is_in_run(group, world_size) and _fits_in_part(group, stages, roles)

    for rank, trace in traces.items():
        own = [group for group in dict.fromkeys(trace.facts.groups) if rank in group and len(group) > 1]
        fitting = [group for group in own if fits(group)]
        fitting = fitting or [group for group in own if fits_in_part(group, trace.facts.world_size)]
        # Several groups may fit; a guess between them could give wrong stages.
        if len(fitting) == 1:
            found[rank] = fitting[0]
    return found


def _fits(
    group: tuple[int, ...], stages: dict[int, frozenset[int]], roles: dict[int, tuple[bool, bool]]
) -> bool:
    """Return whether a group can be a pipeline: its ranks have distinct, contiguous stages.

    Without stages, the roles must fit: the first rank receives no activations, the last one sends none.
    """
    every = [stage for rank in group for stage in stages[rank]]
    if every:
        return len(every) == len(set(every)) and set(every) == set(range(len(every)))
    last = len(group) - 1
    return all(roles[rank] == (place > 0, place < last) for place, rank in enumerate(group))


def _is_in_run(group: tuple[int, ...], world_size: int | None) -> bool:
    return world_size is not None and max(group) < world_size


def _fits_in_part(
    group: tuple[int, ...], stages: dict[int, frozenset[int]], roles: dict[int, tuple[bool, bool]]
) -> bool:
    """Return whether a group of which some ranks have no trace can be a pipeline: the roles of the others fit.

    Stages that annotations state are not compared: without those of the other ranks, their order is unknown.
    """
    last = len(group) - 1
    here = [(place, rank) for place, rank in enumerate(group) if rank in roles]
    return len(here) < len(group) and all(
        not stages[rank] and roles[rank] == (place > 0, place < last) for place, rank in here
    )


def _role(trace: RankTrace) -> tuple[bool, bool]:
    """Return whether a rank receives activations, and whether it sends them."""
    kinds = set(trace.transfers["kind"])
    return "recv_forward" in kinds, "send_forward" in kinds


def with_places(rank: int, trace: RankTrace, groups: Groups, traces: Mapping[int, RankTrace]) -> RankTrace:
    """Return the trace with stages and peers filled in from the group of its pipeline."""
    group = groups.get(rank)
    if group is None:
        return trace
    transfers, actions = trace.transfers, trace.actions
    if not actions["stage"].drop_nulls().len():
        placed = pl.lit(group.index(rank), pl.Int32)
        is_placed = ~pl.col("kind").is_in(["optimizer", "other"])
        actions = actions.with_columns(stage=pl.when(is_placed).then(placed))
        transfers = transfers.with_columns(stage=placed)
    rank_of_stage = {
        stage: other
        for other in group
        if other in traces
        for stage in traces[other].actions["stage"].drop_nulls().unique()
    }
    rank_of_stage = rank_of_stage or dict(enumerate(group))
    toward = pl.col("stage") + pl.col("kind").replace_strict(TOWARD, return_dtype=pl.Int32)
    known = toward.replace_strict(
        list(rank_of_stage), list(rank_of_stage.values()), default=None, return_dtype=pl.Int32
    )
    return trace._replace(actions=actions, transfers=transfers.with_columns(peer=pl.coalesce("peer", known)))


TOWARD = dict(zip((*SENDS, *RECEIVES), (1, -1, -1, 1), strict=True))
"""Stage offset to the other end of a transfer: SENDS (forward, backward), then RECEIVES (forward, backward)."""
