"""How much of the communication inside actions and overlapped pairs is hidden behind compute, from their kernels.

Communication is hidden while any kernel of the same rank computes (every category but communication and memcpy), of
the same action or of another one. The rest is exposed. Kernels that run at the same time count once: all times are
lengths of unions.
"""

from __future__ import annotations

import polars as pl

from stagescope.model.coverage import covered_ns, unite
from stagescope.model.tables import Column, KindType, Table
from stagescope.vocabulary.kernels import ALL_TO_ALL, ALL_TO_ALLS, COMMUNICATION, NOT_COMPUTE

ANY = "any"
ACTION, PAIR, OUTSIDE, RUN = "action", "pair", "outside", "run"
OF_ACTION = ("step", "kind", "stage", "microbatch", "pair")
OF_PAIR = ("step", "pair")

MEASURED = (
    Column("kernels", pl.UInt32, "", "Communication kernels."),
    Column("communication_ns", pl.Int64, "ns", "How long any of them ran: hidden_ns + exposed_ns."),
    Column("hidden_ns", pl.Int64, "ns", "Part of it during which a kernel of the rank computed."),
    Column("exposed_ns", pl.Int64, "ns", "The rest."),
    Column(
        "hidden_fraction", pl.Float64, "", "hidden_ns / communication_ns; null without a length.", nullable=True
    ),
)  # fmt: skip
OPERATION = Column(
    "operation",
    pl.String,
    "",
    "`all_to_all` includes dispatch and combine, `any` is all communication; null: its name does not state it.",
    nullable=True,
)

KERNEL_COMMUNICATION = Table(
    "kernel_communication",
    "one communication operation in one action, in one overlapped pair, or outside of all actions of a rank",
    ("rank", "scope", "step", "pair", "kind", "stage", "microbatch", "operation"),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column("scope", pl.String, "", "What the row is about: `action`, `pair` (all of its actions), or `outside`."),
        Column("step", pl.Int32, "", "Training step.", nullable=True),
        Column("kind", KindType, "", "Kind of the action; null for pairs and outside.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of the action.", nullable=True),
        Column("microbatch", pl.Int32, "", "Micro-batch of the action.", nullable=True),
        Column("pair", pl.Int32, "", "Overlapped pair, as in spans.", nullable=True),
        OPERATION,
        *MEASURED,
    ),
)  # fmt: skip

KERNEL_COMMUNICATION_KINDS = Table(
    "kernel_communication_kinds",
    "one communication operation, by what it ran in: sums over the rows of kernel_communication, and the whole run",
    (),
    (
        Column(
            "within", pl.String, "", "A kind of action, `pair`, `outside` of actions, or `run`: everything."
        ),
        OPERATION,
        Column("count", pl.UInt32, "", "Actions, pairs or ranks with this operation."),
        *MEASURED,
    ),
)


def measure_kernel_communication(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the table KERNEL_COMMUNICATION of a table KERNELS; empty without communication kernels."""
    if kernels.is_empty():
        return KERNEL_COMMUNICATION.empty()
    sent, busy = _communication(kernels), _compute(kernels)
    in_action, in_pair = pl.col("kind").is_not_null(), pl.col("pair").is_not_null()
    parts = [
        _measured(sent.filter(in_action), busy, ("rank", *OF_ACTION), ACTION),
        _measured(sent.filter(in_pair), busy, ("rank", *OF_PAIR), PAIR),
        _measured(sent.filter(~in_action), busy, ("rank",), OUTSIDE),
    ]
    found = pl.concat(parts, how="diagonal_relaxed")
    return _declared(found, KERNEL_COMMUNICATION).sort(KERNEL_COMMUNICATION.order, nulls_last=True)


def summarize_kernel_communication(kernels: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the table KERNEL_COMMUNICATION_KINDS; `rows` is what measure_kernel_communication returns."""
    if kernels.is_empty():
        return KERNEL_COMMUNICATION_KINDS.empty()
    run = _measured(_communication(kernels), _compute(kernels), ("rank",), RUN)
    within = pl.when(pl.col("scope") == ACTION).then(pl.col("kind").cast(pl.String)).otherwise("scope")
    every = pl.concat([rows, run], how="diagonal_relaxed").with_columns(within=within)
    sums = every.group_by("within", "operation").agg(
        pl.len().alias("count"), pl.sum("kernels", "communication_ns", "hidden_ns", "exposed_ns")
    )
    order = [RUN, PAIR, *KindType.categories, OUTSIDE]
    place = pl.col("within").replace_strict(order, range(len(order)), return_dtype=pl.Int32)
    ordered = sums.sort(place, -pl.col("communication_ns"), "operation", nulls_last=True)
    return _declared(_with_fraction(ordered), KERNEL_COMMUNICATION_KINDS)


def _communication(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the communication kernels once for each operation of MEASURED that they belong to."""
    own = kernels.filter(pl.col("category") == COMMUNICATION).with_columns(
        pl.col("operation").cast(pl.String)
    )
    exchanges = own.filter(pl.col("operation").is_in(ALL_TO_ALLS) & (pl.col("operation") != ALL_TO_ALL))
    return pl.concat(
        [own, exchanges.with_columns(operation=pl.lit(ALL_TO_ALL)), own.with_columns(operation=pl.lit(ANY))]
    )


def _compute(kernels: pl.DataFrame) -> pl.DataFrame:
    return unite(kernels.filter(~pl.col("category").cast(pl.String).is_in(NOT_COMPUTE)))


def _measured(sent: pl.DataFrame, busy: pl.DataFrame, keys: tuple[str, ...], scope: str) -> pl.DataFrame:
    """Return the measurements of communication kernels, one row for each of the keys and operation."""
    named = sent.select(*keys, "operation").unique(maintain_order=True).with_row_index("group")
    grouped = sent.join(named, on=(*keys, "operation"), nulls_equal=True)
    # The union of each group, with the group in the place of the rank.
    united = unite(grouped.select("start_ns", "end_ns", rank="group"))
    windows = (
        united.rename({"rank": "group"})
        .join(named.select("group", "rank"), on="group", maintain_order="left")
        .rename({"start_ns": "window_start_ns", "end_ns": "window_end_ns"})
    )
    times = windows.with_columns(hidden_ns=covered_ns(windows, busy))
    sums = times.group_by("group").agg(
        communication_ns=(pl.col("window_end_ns") - pl.col("window_start_ns")).sum(),
        hidden_ns=pl.sum("hidden_ns"),
    )
    counts = grouped.group_by("group").agg(kernels=pl.len())
    known = named.join(counts, on="group", how="left").join(sums, on="group", how="left")
    filled = known.with_columns(pl.col("communication_ns", "hidden_ns").fill_null(0))
    exposed = filled.with_columns(exposed_ns=pl.col("communication_ns") - pl.col("hidden_ns"))
    return _with_fraction(exposed.with_columns(scope=pl.lit(scope)))


def _with_fraction(rows: pl.DataFrame) -> pl.DataFrame:
    has_length = pl.col("communication_ns") > 0
    return rows.with_columns(
        hidden_fraction=pl.when(has_length).then(pl.col("hidden_ns") / pl.col("communication_ns"))
    )


def _declared(rows: pl.DataFrame, table: Table) -> pl.DataFrame:
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None).alias(name)).cast(dtype)
        for name, dtype in table.schema.items()
    )
