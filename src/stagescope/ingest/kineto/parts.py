"""Annotated parts of the actions of an overlapped pair, such as ``attn(F)`` and ``mlp(W)``.

Traces of DualPipe annotate the layers inside a pair instead of its actions (deepseek-ai/profile-data, train.json:
``1F1B`` encloses attn(F), dispatch(F), mlp(F), combine(F), attn(B) ... attn(W) of four layers). They name neither a
micro-batch nor a stage, so the parts are spans without a step, and no bubble can be measured.
"""

from __future__ import annotations

import re

import polars as pl

from stagescope.ingest.annotations.names import step_number
from stagescope.vocabulary.kernels import COMMUNICATION
from stagescope.vocabulary.kinds import COMM, COMPUTE, HOST

PART = re.compile(r"[A-Za-z][\w.\-/ ]{0,60}\((F|B|W|I)\)")
KINDS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
FEWEST = 2
PARTS_SCHEMA = {
    "kind": pl.String, "stage": pl.Int32, "microbatch": pl.Int32, "step": pl.Int32, "pair": pl.Int32,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "edge_error_ns": pl.Int64, "name": pl.String,
    "mark_start_ns": pl.Int64, "mark_end_ns": pl.Int64,
}  # fmt: skip


def find_parts(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the parts as actions at host times (PARTS_SCHEMA); parts in one annotation have one `pair`.

    Parts outside of any other annotation, or alone in it, are left out: nothing shows to which pair they belong. Where
    a pair has parts of W, its parts of B are input gradients.
    """
    letters = {name: part[1] for name in annotations["name"].unique() if (part := PART.fullmatch(name))}
    if not letters:
        return pl.DataFrame(schema=PARTS_SCHEMA)
    named = annotations.with_columns(
        letter=pl.col("name").replace_strict(letters, default=None, return_dtype=pl.String)
    )
    around = pl.Series("around", _enclosing(named), dtype=pl.Int64)
    parts = named.with_columns(around).drop_nulls(("letter", "around"))
    parts = parts.filter(pl.len().over("around") >= FEWEST).sort("start_ns")
    has_weights = (pl.col("letter") == "W").any().over("around")
    kind = pl.col("letter").replace_strict(KINDS, return_dtype=pl.String)
    described = parts.with_columns(
        kind=pl.when(has_weights & (kind == "backward")).then(pl.lit("backward_input")).otherwise(kind),
        pair=(pl.col("around").rank("dense") - 1).cast(pl.Int32),
        edge_error_ns=pl.lit(0, pl.Int64),
        mark_start_ns="start_ns",
        mark_end_ns="end_ns",
    )
    return described.select(
        pl.col(name) if name in described.columns else pl.lit(None, dtype).alias(name)
        for name, dtype in PARTS_SCHEMA.items()
    )


def _enclosing(annotations: pl.DataFrame) -> list[int | None]:
    """Return for each annotation the start of the innermost other one around it that is neither a part nor a step."""
    found: list[int | None] = [None] * annotations.height
    ordered = annotations.with_row_index("row").sort(
        "thread", "start_ns", "end_ns", descending=[False, False, True]
    )
    thread, open_until = None, list[tuple[int, int]]()
    for row, name, letter, own, start_ns, end_ns in ordered.select(
        "row", "name", "letter", "thread", "start_ns", "end_ns"
    ).iter_rows():
        if own != thread:
            thread, open_until = own, []
        while open_until and open_until[-1][1] < end_ns:
            open_until.pop()
        if letter is not None:
            found[row] = open_until[-1][0] if open_until else None
        elif step_number(name) is None:
            open_until.append((start_ns, end_ns))
    return found


def parts_on_device(parts: pl.DataFrame, kernels: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the parts from the start of their first kernel to the end of their last, and how many have no kernel.

    `kernels` has `action`, the row of the part. A part of which most kernel time is communication is on the lane of
    transfers; a part without kernels stays where the host launched it.
    """
    length_ns = pl.col("end_ns") - pl.col("start_ns")
    times = (
        kernels.drop_nulls("action")
        .group_by("action")
        .agg(
            device_start_ns=pl.min("start_ns"),
            device_end_ns=pl.max("end_ns"),
            length_ns=length_ns.sum(),
            communication_ns=length_ns.filter(pl.col("category") == COMMUNICATION).sum(),
        )
    )
    joined = parts.with_row_index("action").join(times, on="action", how="left", maintain_order="left")
    mostly = 2 * pl.col("communication_ns") > pl.col("length_ns")
    lane = pl.when(pl.col("device_start_ns").is_null()).then(pl.lit(HOST))
    moved = joined.with_columns(
        start_ns=pl.coalesce("device_start_ns", "start_ns"),
        end_ns=pl.coalesce("device_end_ns", "end_ns"),
        lane=lane.when(mostly).then(pl.lit(COMM)).otherwise(pl.lit(COMPUTE)),
    )
    return moved.drop("action"), moved["device_start_ns"].null_count()
