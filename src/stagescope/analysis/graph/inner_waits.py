"""When ranks waited for data-parallel collectives inside of actions, such as the gathering of sharded parameters.

FSDP gathers the parameters of a stage inside of the forward that needs them, and so does Megatron-core with
overlap_param_gather. A rank that waits there does not compute: until its last replica has come, it waits for that
replica, and from then on for the transfer. Collectives of other groups, such as those of tensor parallelism, are part
of the work of their action.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.graph.reduction_waits import find_collective_waits, no_reduction_waits
from stagescope.model.collectives import KINDS, SEPARATOR
from stagescope.model.group_kinds import DATA_PARALLEL, find_group_kinds

if TYPE_CHECKING:
    from stagescope.analysis.graph.reduction_waits import ReductionWaits


def find_inner_waits(spans: pl.DataFrame, ranks: pl.DataFrame) -> ReductionWaits:
    """Return the waits for data-parallel collectives that some rank issued inside of an action.

    `ranks` is the table RANKS, whose coordinates show the kinds of groups whose names do not.
    """
    is_call = pl.col("kind").is_in(KINDS) & pl.col("pair").is_not_null() & pl.col("wait_end_ns").is_not_null()
    is_inside = is_call & pl.col("stage").is_not_null()
    group = pl.col("name").cast(pl.String).str.splitn(SEPARATOR, 2).struct.field("field_1")
    named = pl.col("name").cast(pl.String).str.contains(SEPARATOR, literal=True)
    # First without the names: a run has millions of spans, and few names of collectives.
    members = spans.lazy().filter(is_inside).select("rank", "name").unique().collect().filter(named)
    if members.is_empty():
        return no_reduction_waits()
    members = members.with_columns(group=group)
    kinds = find_group_kinds(members.select("group", "rank"), ranks)
    is_parallel = pl.col("group_kind").str.split("+").list.contains(DATA_PARALLEL)
    names = members.join(kinds.filter(is_parallel), on="group")["name"].unique()
    if names.is_empty():
        return no_reduction_waits()
    return find_collective_waits(spans.filter(is_call & pl.col("name").is_in(names.implode())), spans)
