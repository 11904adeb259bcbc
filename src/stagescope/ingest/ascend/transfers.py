"""Transfers between ranks in one profile, from the communication library's operations or from marks of them.

From profiler level 1 on, COMMUNICATION_OP lists every operation, and COMMUNICATION_TASK_INFO lists its tasks with the
rank at the other end, numbered within the operation's group. At Level_none only torch_npu's own mstx marks exist; they
record the direction but not the peer.
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

SEND, RECEIVE, BATCH = ROLES = ("send", "receive", "batch")
"""A batch (hcom_batchSendRecv) may send, receive or do both; its tasks do not record which."""

OPERATIONS = (
    ("hcom_send", SEND),
    ("hcom_rec", RECEIVE),  # hcom_receive and hcom_recv
    ("hcom_batchsendrecv", BATCH),
    ("hcclsend", SEND),
    ("hcclrec", RECEIVE),
    ("hcclbatchsendrecv", BATCH),
)
"""Prefixes of the names of operations between two ranks, in lower case: HCCL's, and those of torch_npu's marks."""

# HCCL's value for "no remote rank": an unsigned 32-bit -1.
NO_RANK = 4_294_967_295
RAW_TRANSFERS = {
    "rank": pl.Int32,
    "name": pl.String,  # of the operation
    "role": pl.String,  # one of ROLES
    "group": pl.String,
    "local_peer": pl.Int64,  # rank within the group; null if unknown
    "bytes": pl.Int64,
    "tasks": pl.Int64,  # number of the operation's tasks with that rank
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
}
"""Columns of the raw transfers: one row per operation and rank at the other end."""

OPS = {"op": pl.Int64, "name": pl.String, "group": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64}
LINKS = {"op": pl.Int64, "own": pl.Int64, "local_peer": pl.Int64, "bytes": pl.Int64}
NUMBERED_OPS = {"op": pl.Int64, "name": pl.Int64, "group": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
TASKS = {**LINKS, "kind": pl.Int64}
STRINGS = {"number": pl.Int64, "text": pl.String}
ELEMENT_BYTES = {
    "int8": 1, "uint8": 1, "fp16": 2, "bfp16": 2, "int16": 2, "uint16": 2, "fp32": 4, "int32": 4, "uint32": 4,
    "fp64": 8, "int64": 8, "uint64": 8,
}  # fmt: skip


def read_transfers(database: Database, facts: Facts) -> pl.DataFrame:
    """Return the operations of a profile between two ranks as RAW_TRANSFERS; bytes are those of the copy tasks."""
    if not database.has("COMMUNICATION_OP"):
        if database.has("COMMUNICATION_TASK_INFO"):
            database.note("COMMUNICATION_OP", "is missing, although COMMUNICATION_TASK_INFO has its tasks")
        return pl.DataFrame(schema=RAW_TRANSFERS)
    database.check_references("COMMUNICATION_OP", "opName", "STRING_IDS", "id")
    database.check_references("COMMUNICATION_TASK_INFO", "opId", "COMMUNICATION_OP", "opId")
    ops = _ops(database)
    links = _links(database, ops["op"].drop_nulls().to_list())
    found = ops.join(_peers(ops, links, facts), on="op", how="left", maintain_order="left")
    return _raw(found.drop_nulls(["start_ns", "end_ns"]), facts.rank)


def _ops(database: Database) -> pl.DataFrame:
    """Return the operations between two ranks as OPS."""
    # The names are joined here and not in SQL: with repeated ids, a join in SQL may have any number of rows.
    names = _strings(database, [f"{prefix}%" for prefix, _ in OPERATIONS])
    columns = database.columns("COMMUNICATION_OP", "t", ("opId", "opName", "groupName", "startNs", "endNs"))
    query = (
        f"SELECT t.rowid, {columns} FROM COMMUNICATION_OP t "  # noqa: S608 - declared names
        "WHERE t.opName IN (SELECT value FROM json_each(?))"
    )
    rows = database.rows("COMMUNICATION_OP", query, [json.dumps(names["number"].to_list())])
    ops = database.typed("COMMUNICATION_OP", rows, NUMBERED_OPS)
    groups = _strings_of(database, ops["group"].drop_nulls().unique().to_list())
    return (
        ops.rename({"name": "number", "group": "group_number"})
        .join(names.rename({"text": "name"}), on="number", how="left", maintain_order="left")
        .join(groups.rename({"number": "group_number", "text": "group"}), on="group_number", how="left",
              maintain_order="left")
        .select(list(OPS))
    )  # fmt: skip


def _strings(database: Database, patterns: list[str]) -> pl.DataFrame:
    """Return the strings that match a pattern of SQL, by number."""
    alike = " OR ".join("t.value LIKE ?" for _ in patterns)
    return _unique_strings(database, alike, patterns)


def _strings_of(database: Database, numbers: list[int]) -> pl.DataFrame:
    """Return the strings with some numbers."""
    return _unique_strings(database, "t.id IN (SELECT value FROM json_each(?))", [json.dumps(numbers)])


def _unique_strings(database: Database, condition: str, parameters: list[str]) -> pl.DataFrame:
    columns = database.columns("STRING_IDS", "t", ("id", "value"))
    query = f"SELECT t.rowid, {columns} FROM STRING_IDS t WHERE {condition}"  # noqa: S608 - declared names
    rows = database.rows("STRING_IDS", query, parameters)
    return (
        database.typed("STRING_IDS", rows, STRINGS)
        .drop_nulls()
        .unique("number", keep="first", maintain_order=True)
    )


def _links(database: Database, ops: list[int]) -> pl.DataFrame:
    """Return the tasks of operations that record a rank at the other end as LINKS."""
    table = "COMMUNICATION_TASK_INFO"
    if not ops or not database.has(table):
        return pl.DataFrame(schema=LINKS)
    columns = database.columns(table, "t", ("opId", "srcRank", "dstRank", "size", "taskType"))
    query = (
        f"SELECT t.rowid, {columns} FROM {table} t "  # noqa: S608 - declared names
        "WHERE t.opId IN (SELECT value FROM json_each(?))"
    )
    tasks = database.typed(table, database.rows(table, query, [json.dumps(ops)]), TASKS)
    # Notify tasks only synchronize; their recorded size is not a payload.
    notify = _strings(database, ["Notify%"])["number"]
    is_notify = pl.col("kind").is_in(notify.implode()).fill_null(value=False)
    return tasks.select("op", "own", "local_peer", bytes=pl.when(is_notify).then(0).otherwise("bytes"))


def _peers(ops: pl.DataFrame, links: pl.DataFrame, facts: Facts) -> pl.DataFrame:
    """Return op, local_peer, bytes, tasks: one row per rank at the other end.

    A task records its own rank first and the other second, whichever direction the data take. If the recorded group
    shows the reverse, the rank that is not this profile's own is used.
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
    role = pl.lit(None, pl.String)
    for prefix, meaning in OPERATIONS:
        role = pl.when(lower.str.starts_with(prefix)).then(pl.lit(meaning)).otherwise(role)
    return found.with_columns(rank=pl.lit(rank, pl.Int32), role=role).select(
        pl.col(name).cast(dtype) for name, dtype in RAW_TRANSFERS.items()
    )


def marked_transfers(marks: pl.DataFrame, rank: int) -> pl.DataFrame:
    """Return the marks of communication between two ranks as RAW_TRANSFERS.

    `marks` has text, start_ns and end_ns; a text is an object with opName, groupName, count and dataType.
    """
    texts = marks["text"].unique()
    parsed = pl.DataFrame(list(_parse_marks(texts)), schema=MARKED, orient="row")
    found = marks.join(parsed, on="text", how="inner").with_columns(
        local_peer=pl.lit(None, pl.Int64), tasks=pl.lit(None, pl.Int64)
    )
    return _raw(found.sort("start_ns"), rank).drop_nulls("role")


MARKED = {"text": pl.String, "name": pl.String, "group": pl.String, "bytes": pl.Int64}


def _parse_marks(texts: Iterable[str]) -> Iterable[tuple[str, str, str | None, int | None]]:
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
    """Return the raw transfers of all ranks with `peer`, the global rank at the other end, null if unknown.

    The peer is looked up in the group's recorded list of ranks, otherwise among the ranks along the pipeline.
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
