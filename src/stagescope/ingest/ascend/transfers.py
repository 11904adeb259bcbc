"""What ranks sent one another, as one profile shows it: the operations of the communication library, or marks of them.

From profiler level 1 on COMMUNICATION_OP lists every operation, and COMMUNICATION_TASK_INFO its tasks with the rank at
the other end, counted within the operation's group. At Level_none torch_npu's own mstx marks are all there is; they
name the direction and leave out the peer.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import polars as pl

from stagescope.ingest.ascend.markers import read_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stagescope.ingest.ascend.metadata import Facts
    from stagescope.ingest.database import Database

SEND, RECEIVE, BATCH = WAYS = ("send", "receive", "batch")
"""A batch (hcom_batchSendRecv) may send, receive or do both; its tasks do not say which."""

OPERATIONS = (
    ("hcom_send", SEND),
    ("hcom_rec", RECEIVE),  # hcom_receive and hcom_recv
    ("hcom_batchsendrecv", BATCH),
    ("hcclsend", SEND),
    ("hcclrec", RECEIVE),
    ("hcclbatchsendrecv", BATCH),
)
"""How the names of operations between two ranks begin, in lower case: HCCL's, and those of torch_npu's marks."""

NO_RANK = 4_294_967_295
RAW_TRANSFERS = {
    "rank": pl.Int32,
    "name": pl.String,  # of the operation
    "way": pl.String,  # one of WAYS
    "group": pl.String,
    "local_peer": pl.Int64,  # rank within the group; null where nothing tells
    "bytes": pl.Int64,
    "tasks": pl.Int64,  # how many of the operation concern that rank
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""Columns of the raw transfers: one row per operation and rank at the other end."""

OPS = {"op": pl.Int64, "name": pl.String, "group": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
LINKS = {"op": pl.Int64, "own": pl.Int64, "local_peer": pl.Int64, "bytes": pl.Int64}
ELEMENT_BYTES = {
    "int8": 1, "uint8": 1, "fp16": 2, "bfp16": 2, "int16": 2, "uint16": 2, "fp32": 4, "int32": 4, "uint32": 4,
    "fp64": 8, "int64": 8, "uint64": 8,
}  # fmt: skip


def read_transfers(database: Database, facts: Facts) -> pl.DataFrame:
    """Return the operations of a profile that concern two ranks, as RAW_TRANSFERS; bytes are those of the copies."""
    if not database.has("COMMUNICATION_OP"):
        return pl.DataFrame(schema=RAW_TRANSFERS)
    ops = pl.DataFrame(_ops(database), schema=OPS, orient="row", strict=False)
    links = pl.DataFrame(_links(database, ops["op"].to_list()), schema=LINKS, orient="row", strict=False)
    found = ops.join(_peers(ops, links, facts), on="op", how="left", maintain_order="left")
    return _raw(found.drop_nulls(["start_ns", "end_ns"]), facts.rank)


def _ops(database: Database) -> list[tuple[object, ...]]:
    columns = database.columns("COMMUNICATION_OP", "t", ("opId",))
    times = database.columns("COMMUNICATION_OP", "t", ("startNs", "endNs"))
    alike = " OR ".join("n.value LIKE ?" for _ in OPERATIONS)
    query = (
        f"SELECT t.rowid, {columns}, n.value, g.value, {times} FROM COMMUNICATION_OP t "  # noqa: S608 - declared names
        f"JOIN STRING_IDS n ON n.id = t.opName LEFT JOIN STRING_IDS g ON g.id = t.groupName WHERE {alike}"
    )
    return database.rows("COMMUNICATION_OP", query, [f"{prefix}%" for prefix, _ in OPERATIONS])


def _links(database: Database, ops: list[int]) -> list[tuple[object, ...]]:
    """Return the tasks of operations that name a rank at the other end."""
    if not ops or not database.has("COMMUNICATION_TASK_INFO"):
        return []
    columns = database.columns("COMMUNICATION_TASK_INFO", "t", ("opId", "srcRank", "dstRank"))
    size = "CASE WHEN k.value LIKE 'Notify%' THEN 0 ELSE t.size END"
    query = (
        f"SELECT t.rowid, {columns}, {size} FROM COMMUNICATION_TASK_INFO t "  # noqa: S608 - declared names
        "LEFT JOIN STRING_IDS k ON k.id = t.taskType WHERE t.opId IN (SELECT value FROM json_each(?))"
    )
    return database.rows("COMMUNICATION_TASK_INFO", query, [json.dumps(ops)])


def _peers(ops: pl.DataFrame, links: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Return op, local_peer, bytes, tasks: one row per rank at the other end.

    A task names its own rank first and the other second, whichever way the data go; where the group is recorded and
    has it the other way round, the rank that is not one's own counts.
    """
    own = {
        name: group.ranks.index(facts.rank)
        for name, group in facts.groups.items()
        if facts.rank in group.ranks
    }
    grouped = links.join(ops.select("op", "group"), on="op", how="left")
    itself = pl.col("group").replace_strict(own, default=None, return_dtype=pl.Int64)
    other = pl.when(pl.col("local_peer") == itself).then("own").otherwise("local_peer")
    is_other = pl.col("local_peer").is_between(0, NO_RANK - 1) & (pl.col("local_peer") != itself).fill_null(
        value=True
    )
    return (
        grouped.with_columns(local_peer=other)
        .filter(is_other)
        .group_by("op", "local_peer", maintain_order=True)
        .agg(pl.sum("bytes"), tasks=pl.len())
        .with_columns(pl.when(pl.col("bytes") > 0).then("bytes"))
    )


def _raw(found: pl.DataFrame, rank: int) -> pl.DataFrame:
    lower = pl.col("name").str.to_lowercase()
    way = pl.lit(None, pl.String)
    for prefix, meaning in OPERATIONS:
        way = pl.when(lower.str.starts_with(prefix)).then(pl.lit(meaning)).otherwise(way)
    return found.with_columns(rank=pl.lit(rank, pl.Int32), way=way).select(
        pl.col(name).cast(dtype) for name, dtype in RAW_TRANSFERS.items()
    )


def marked_transfers(marks: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Return the marks of communication between two ranks as RAW_TRANSFERS.

    `marks` has text, start_ns and end_ns; a text is an object with opName, groupName, count and dataType.
    """
    texts = marks["text"].unique()
    said = pl.DataFrame(list(_said(texts)), schema=SAID, orient="row")
    found = marks.join(said, on="text", how="inner").with_columns(
        local_peer=pl.lit(None, pl.Int64), tasks=pl.lit(None, pl.Int64)
    )
    return _raw(found.sort("start_ns"), rank).drop_nulls("way")


SAID = {"text": pl.String, "name": pl.String, "group": pl.String, "bytes": pl.Int64}


def _said(texts: Iterable[str]) -> Iterable[tuple[str, str, str | None, int | None]]:
    for text in texts:
        facts = read_object(text)
        size = ELEMENT_BYTES.get(str(facts.get("dataType", "")).lower())
        count = str(facts.get("count", ""))
        size_bytes = size * int(count) if size and count.isdecimal() else None
        group = facts.get("groupName")
        yield text, str(facts.get("opName")), str(group) if group is not None else None, size_bytes


def with_peers(
    transfers: pl.DataFrame, groups: Mapping[int, Facts], coordinates: pl.DataFrame
) -> pl.DataFrame:
    """Return the raw transfers of all ranks with `peer`, the global rank at the other end, null where nothing tells.

    A group's own list of ranks says which is meant; without it, the ranks along the pipeline do.
    """
    listed = pl.DataFrame(
        [
            (rank, name, place, peer)
            for rank, facts in groups.items()
            for name, group in facts.groups.items()
            for place, peer in enumerate(group.ranks)
        ],
        schema={"rank": pl.Int32, "group": pl.String, "local_peer": pl.Int64, "listed": pl.Int32},
        orient="row",
    )
    along = ["dp", "tp", "cp"]
    placed = coordinates.drop_nulls(["pp", *along])
    own = placed.select("rank", *along)
    others = placed.select(*along, local_peer=pl.col("pp").cast(pl.Int64), along="rank")
    guessed = own.join(others, on=along).select("rank", "local_peer", "along")
    return (
        transfers.join(listed, on=["rank", "group", "local_peer"], how="left", maintain_order="left")
        .join(guessed, on=["rank", "local_peer"], how="left", maintain_order="left")
        .with_columns(peer=pl.coalesce("listed", "along"))
        .drop("listed", "along")
    )
