"""The numbered collectives of one rank, from the arguments of their kernels.

Sources: torch 2.13, ProcessGroupNCCL.hpp (`seqCollective_` counts the collectives of a process group on this rank, and
those of one coalesced batch have one number) and kineto#1294 (``Seq``). All members of a group issue its collectives in
the same order, so group and number identify a collective on all of them. The numbers of sends and receives
(`seqP2P_`) count what this process sent and received, which differs from what its peers did: they match nothing.

A collective begins when the device reaches its kernel, and ends with it: the kernel waits for all ranks of its group.
Without numbers, collectives could only be matched by their order, which is wrong as soon as two traces begin at
different ones. Those are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from stagescope.ingest.annotations.kernel_categories import COPIES, collective_operation
from stagescope.ingest.annotations.kernel_classes import COMPUTE_KERNEL
from stagescope.ingest.annotations.steps import with_steps
from stagescope.ingest.kineto.device import launched_kernels, placed_in
from stagescope.model.collectives import SEPARATOR
from stagescope.model.diagnostics import Diagnostic
from stagescope.record.frameworks.groups import ranks_text
from stagescope.vocabulary.kernels import SEND_RECV
from stagescope.vocabulary.kinds import COLLECTIVE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stagescope.ingest.kineto.rank_trace import RankTrace
    from stagescope.ingest.kineto.tables import TraceTables

COLLECTIVES_SCHEMA = {
    "kind": pl.String, "name": pl.String, "pair": pl.Int32, "stage": pl.Int32, "step": pl.Int32, "bytes": pl.Int64,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "wait_start_ns": pl.Int64, "wait_end_ns": pl.Int64, "own_row": pl.Int64,
}  # fmt: skip
UNDEFINED = "undefined"
"""What torch calls the purpose of a group that was given none."""
NUMBERED = ["group", "sequence"]
GRAD_REDUCE = "grad_reduce"
IDENTITY = ("sequence", "group", "purpose", "members")


def find_collectives_of_rank(
    read: TraceTables, actions: pl.DataFrame, steps: pl.DataFrame, openings: list[int]
) -> pl.DataFrame:
    """Return the numbered collectives (COLLECTIVES_SCHEMA) at device times.

    `actions` are those at host times, with their marks, `own_row` and `step`; `steps` and `openings` are what
    with_steps needs for collectives outside of all actions. The wait is what follows the last kernel that computed
    beside a collective: before that, the device had something else to do. `own_row` is the gradient reduction whose
    annotation launched a collective, null for others.
    """
    messages = _numbered_messages(read)
    if messages.is_empty():
        return pl.DataFrame(schema=COLLECTIVES_SCHEMA)
    communicating = read.tables["kernels"].filter(pl.col("what") != COMPUTE_KERNEL)
    kernels = launched_kernels(communicating, read.tables["launches"])
    calls = kernels.join(messages, on="correlation").sort("start_ns")
    # A coalesced batch is several calls with one number, and a call may be several kernels.
    sizes = calls.unique(["correlation", *NUMBERED]).group_by(NUMBERED).agg(pl.sum("bytes"))
    merged = calls.group_by(NUMBERED, maintain_order=True).agg(
        pl.first("operation", "purpose", "members"), pl.min("start_ns", "launch_ns"), pl.max("end_ns")
    )
    merged = _in_actions(merged.join(sizes, on=NUMBERED), actions)
    merged = with_steps(merged.with_columns(mark_start_ns="launch_ns"), steps, openings)
    ranks = _ranks_of_groups(read.facts)
    titles = [
        f"{operation}{SEPARATOR}{_title(group, purpose, members, ranks)}"
        for operation, group, purpose, members in merged.select(
            "operation", "group", "purpose", "members"
        ).iter_rows()
    ]
    named = merged.with_columns(pl.Series("name", titles, pl.String), pair="sequence", wait_end_ns="end_ns")
    waiting = _with_wait_starts(named, _computing(read))
    return waiting.select(pl.col(name).cast(kind) for name, kind in COLLECTIVES_SCHEMA.items())


def _numbered_messages(read: TraceTables) -> pl.DataFrame:
    """Return the messages that are numbered collectives, with `operation`; the call that launched one may number it."""
    messages = read.tables["messages"].unique("correlation", keep="first", maintain_order=True)
    stated = read.tables["calls"].drop_nulls(["external", "sequence"]).unique("external", keep="last")
    joined = messages.join(stated, on="external", how="left", suffix="_stated", maintain_order="left")
    known = joined.with_columns(pl.coalesce(name, f"{name}_stated") for name in IDENTITY)
    numbered = known.filter((pl.col("sequence") >= 0) & pl.col("group").is_not_null())
    operations = {
        name: collective_operation(name) or name.strip("_") for name in numbered["collective"].unique()
    }
    operation = pl.col("collective").replace_strict(operations, default=None, return_dtype=pl.String)
    return numbered.with_columns(operation=operation).filter(pl.col("operation") != SEND_RECV)


def _in_actions(calls: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives with kind, and stage and step of the action that launched them, if it has them."""
    numbered = calls.with_row_index("call")
    owners = actions.with_row_index("action").select(
        "action", "own_row", *(_or_null(actions, name) for name in ("stage", "step")), of="kind"
    )
    placed = placed_in(numbered, actions).select("call", "action").unique("call", keep="first")
    found = placed.join(owners, on="action").drop("action")
    joined = numbered.join(found, on="call", how="left", maintain_order="left").drop("call")
    reduces = (pl.col("of") == GRAD_REDUCE).fill_null(value=False)
    return joined.with_columns(
        kind=pl.when(reduces).then(pl.lit(GRAD_REDUCE)).otherwise(pl.lit(COLLECTIVE)),
        own_row=pl.when(reduces).then("own_row"),
    )


def _or_null(actions: pl.DataFrame, name: str) -> pl.Expr:
    return pl.col(name) if name in actions.columns else pl.lit(None, pl.Int32).alias(name)


def _computing(read: TraceTables) -> pl.DataFrame:
    """Return start_ns and end_ns of the kernels that compute, by start; copies and fills do not."""
    copies = [number for number, name in enumerate(read.kernel_names) if name.lower().startswith(COPIES)]
    computes = (pl.col("what") == COMPUTE_KERNEL) & ~pl.col("name_number").is_in(copies)
    return read.tables["kernels"].filter(computes).select("start_ns", "end_ns").sort("start_ns")


def _with_wait_starts(calls: pl.DataFrame, computing: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives with wait_start_ns: the end of the last kernel that began to compute before they ended."""
    until = computing.select(begun_ns=pl.col("start_ns") + 1, busy_until_ns=pl.col("end_ns").cum_max())
    joined = calls.sort("end_ns").join_asof(
        until, left_on="end_ns", right_on="begun_ns", check_sortedness=False
    )
    free_ns = pl.max_horizontal("start_ns", "busy_until_ns")
    return joined.with_columns(wait_start_ns=pl.min_horizontal("end_ns", free_ns)).sort("start_ns")


def _ranks_of_groups(facts: Mapping[str, Any]) -> dict[str, list[int]]:
    """Return the ranks of process groups by name, from the header: arguments of kernels list at most 30 of them."""
    info = facts.get("distributedInfo")
    groups = info.get("pg_config") if isinstance(info, dict) else None
    found = {}
    for one in groups if isinstance(groups, list) else []:
        ranks = _ranks(one.get("ranks")) if isinstance(one, dict) else None
        if ranks and isinstance(one.get("pg_name"), str):
            found[one["pg_name"]] = ranks
    return found


def _ranks(value: Any) -> list[int] | None:
    """Return a list of ranks, which may be a text of one; None if it is neither."""
    try:
        return (
            msgspec.json.decode(value, type=list[int])
            if isinstance(value, str)
            else msgspec.convert(value, list[int])
        )
    except msgspec.MsgspecError:
        return None


def _title(group: str, purpose: str | None, members: str | None, ranks: Mapping[str, list[int]]) -> str:
    """Return the text of a process group as recordings have it: its purpose, its ranks, and its name in parentheses."""
    known = _ranks(members) or ranks.get(group)
    listed = ranks_text(known) if known else (members or "").strip("[]").replace(" ", "")
    parts = ("" if purpose in {None, UNDEFINED} else purpose, listed, f"({group})")
    return " ".join(part for part in parts if part)


def without_replaced(actions: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the actions without the annotations of gradient reductions whose collectives are known."""
    replaced = collectives["own_row"].drop_nulls()
    return actions.filter(~pl.col("own_row").is_in(replaced.implode())) if len(replaced) else actions


def window_diagnostics(traces: Mapping[int, RankTrace]) -> list[Diagnostic]:
    """Return a diagnostic for each rank whose trace ends before collectives that others have."""
    parts = [
        trace.collectives.group_by(group=pl.col("name").str.splitn(SEPARATOR, 2).struct.field("field_1"))
        .agg(last=pl.max("pair"))
        .with_columns(rank=pl.lit(rank, pl.Int32))
        for rank, trace in traces.items()
        if trace.collectives.height
    ]
    if not parts:
        return []
    lasts = pl.concat(parts)
    short = lasts.filter(pl.col("last") < pl.col("last").max().over("group"))
    text = "the trace ends before collectives that other ranks of the group recorded"
    return [
        Diagnostic("info", text, str(traces[rank].path), rank, count=count, code="collectives.window")
        for rank, count in short.group_by("rank").len().sort("rank").iter_rows()
    ]
