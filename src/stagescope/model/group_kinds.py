"""What a process group is for: data, tensor, context, expert or pipeline parallelism, or all ranks.

The purpose in the name of a group is used first, as frameworks spell it: ``mesh_dp`` of torch's DeviceMesh,
``TENSOR_MODEL_PARALLEL_GROUP`` of Megatron-core. Groups without a purpose are of the kinds whose coordinates differ
among their ranks.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

KINDS = ("dp", "tp", "cp", "ep", "pp")
DATA_PARALLEL = KINDS[0]
WORLD = "world"
WORDS: Mapping[str, tuple[str, ...]] = {
    "dp": ("dp", "data", "fsdp", "hsdp", "shard", "replicate", "zero"),
    "tp": ("tp", "tensor", "mp"),
    "cp": ("cp", "context", "sequence", "sp"),
    "ep": ("ep", "expert", "moe"),
    "pp": ("pp", "pipeline", "pipe", "embedding", "embd", "tied"),
    WORLD: ("default", "world"),
}
MODEL = "model"
"""A model-parallel group, without anything more exact, is one of tensor and pipeline parallelism."""

FEWEST = 2


def find_group_kinds(members: pl.DataFrame, ranks: pl.DataFrame | None) -> pl.DataFrame:
    """Return group and group_kind; null where neither the name nor coordinates show it.

    `members` has the columns group and rank: who recorded a collective in the group. `ranks` is the table RANKS, None
    if it is not known. Several kinds are joined, such as ``dp+cp``.
    """
    named = {name: _kind_of_name(name) for name in members["group"].unique()}
    by_coordinates = {} if ranks is None else _kinds_of_coordinates(members, ranks)
    kinds = [kind or by_coordinates.get(name) for name, kind in named.items()]
    schema = {"group": pl.String, "group_kind": pl.String}
    return pl.DataFrame([list(named), kinds], schema=schema, orient="col")


def _kind_of_name(group: str) -> str | None:
    """Return the kind that the words before the ranks in the name of a group state.

    >>> _kind_of_name("mesh_dp 0,2 (1)"), _kind_of_name("EXPERT_DATA_PARALLEL_GROUP 0,4 (9)"), _kind_of_name("0-3 (0)")
    ('dp', 'dp', None)
    """
    purpose = " ".join(word for word in group.split(" ")[:-1] if not word[:1].isdigit())
    words = set(re.findall("[a-z]+", purpose.lower()))
    found = [kind for kind, spellings in WORDS.items() if words.intersection(spellings)]
    if "expert" in words and len(found) > 1:
        found.remove("ep")  # the data or tensor parallelism of experts
    return _joined(found or (["tp", "pp"] if MODEL in words else []))


def _kinds_of_coordinates(members: pl.DataFrame, ranks: pl.DataFrame) -> dict[str, str | None]:
    differs = [
        ((pl.col(name).n_unique() > 1) & (pl.col(name).null_count() == 0)).alias(name) for name in KINDS
    ]
    known = ranks.select("rank", *KINDS)
    groups = (
        members.unique(["group", "rank"])
        .join(known, on="rank")
        .group_by("group")
        .agg(pl.len().alias("size"), *differs)
    )
    world = max(ranks.height, int(ranks["world_size"].drop_nulls().max() or 0))  # type: ignore[arg-type]  # integers
    return {
        row["group"]: WORLD
        if row["size"] == world and row["size"] >= FEWEST
        else _joined([name for name in KINDS if row[name]])
        for row in groups.to_dicts()
    }


def _joined(kinds: Collection[str]) -> str | None:
    return "+".join(kinds) or None
