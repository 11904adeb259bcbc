"""The declared tables: every column once, with its type, unit and meaning.

Validation, docs/formats.md and the reading of foreign tables are derived from these declarations. Times are int64
nanoseconds on the timeline's common clock, since the Unix epoch where that is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from stagescope.vocabulary.kernels import CATEGORIES, OPERATIONS
from stagescope.vocabulary.kinds import KIND_NAMES, LANES

if TYPE_CHECKING:
    from collections.abc import Mapping

KindType = pl.Enum(list(KIND_NAMES))
LaneType = pl.Enum(list(LANES))
CategoryType = pl.Enum(list(CATEGORIES))
OperationType = pl.Enum(list(OPERATIONS))
SEVERITIES = ("error", "warning", "info")
SeverityType = pl.Enum(list(SEVERITIES))


@dataclass(frozen=True)
class Column:
    """One column: name, Polars type, unit, meaning, and whether it may be null."""

    name: str
    dtype: pl.DataType | type[pl.DataType]
    unit: str
    meaning: str
    nullable: bool = False


@dataclass(frozen=True)
class Table:
    """One table: its name, the meaning of a row, the order of its rows, and its columns."""

    name: str
    row: str
    order: tuple[str, ...]
    columns: tuple[Column, ...]

    @property
    def schema(self) -> Mapping[str, pl.DataType | type[pl.DataType]]:
        """Column names and Polars types, in order."""
        return {column.name: column.dtype for column in self.columns}

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def empty(self) -> pl.DataFrame:
        """Return the table without rows."""
        return pl.DataFrame(schema=dict(self.schema))


SPANS = Table(
    "spans",
    "one interval on one lane of one rank",
    ("rank", "start_ns", "end_ns"),
    (
        Column("rank", pl.Int32, "", "Global rank of the process."),
        Column("lane", LaneType, "", "Lane: compute, comm (transfers) or host."),
        Column("kind", KindType, "", "What ran, spelled as in vocabulary/kinds.py."),
        Column("step", pl.Int32, "", "Training step, counted from 0 by the recorder.", nullable=True),
        Column("stage", pl.Int32, "", "GLOBAL (virtual) stage, 0 to S-1.", nullable=True),
        Column("chunk", pl.Int32, "", "Local model chunk on this rank, 0 for the first.", nullable=True),
        Column("microbatch", pl.Int32, "", "Micro-batch of the step, from 0.", nullable=True),
        Column(
            "pair",
            pl.Int32,
            "",
            "Shared by the two actions of an overlapped pair; of a collective or transfer, its number in its group.",
            nullable=True,
        ),
        Column(
            "peer",
            pl.Int32,
            "",
            "Global rank at the other end of a transfer; of a collective with one, its root.",
            nullable=True,
        ),
        Column("bytes", pl.Int64, "B", "Size of the transfer.", nullable=True),
        Column("start_ns", pl.Int64, "ns", "Start; for a transfer, when it was issued."),
        Column("end_ns", pl.Int64, "ns", "End; for a receive, when the host noticed its completion."),
        Column(
            "wait_start_ns", pl.Int64, "ns", "When the host began to block on this transfer.", nullable=True
        ),
        Column("wait_end_ns", pl.Int64, "ns", "When the host was released again.", nullable=True),
        Column("name", pl.String, "", "Free text that refines the kind.", nullable=True),
    ),
)

RANKS = Table(
    "ranks",
    "one process",
    ("rank",),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column("machine", pl.String, "", "Machine: one per boot of one host.", nullable=True),
        Column("device", pl.String, "", "Device the rank computed on.", nullable=True),
        Column("pp", pl.Int32, "", "Pipeline-parallel coordinate.", nullable=True),
        Column("dp", pl.Int32, "", "Data-parallel coordinate.", nullable=True),
        Column("tp", pl.Int32, "", "Tensor-parallel coordinate.", nullable=True),
        Column("cp", pl.Int32, "", "Context-parallel coordinate.", nullable=True),
        Column("ep", pl.Int32, "", "Expert-parallel coordinate.", nullable=True),
        Column("host", pl.String, "", "Host name.", nullable=True),
        Column("clock", pl.String, "", "Clock domain of its timestamps, a row of clocks.", nullable=True),
        Column("world_size", pl.Int32, "", "Ranks that the run declared.", nullable=True),
        Column("schedule", pl.String, "", "Schedule that the framework declared.", nullable=True),
        Column("source", pl.String, "", "File it was read from.", nullable=True),
    ),
)

STEPS = Table(
    "steps",
    "one training step of one rank",
    ("step", "rank"),
    (
        Column("step", pl.Int32, "", "Training step."),
        Column("rank", pl.Int32, "", "Global rank."),
        Column("start_ns", pl.Int64, "ns", "When the schedule's step began on this rank."),
        Column("end_ns", pl.Int64, "ns", "When it returned."),
    ),
)

CLOCKS = Table(
    "clocks",
    "one clock domain and time segment",
    ("clock", "start_ns"),
    (
        Column("clock", pl.String, "", "Clock domain: boot id, clock name and time namespace."),
        Column("machine", pl.String, "", "Machine that carries the clock.", nullable=True),
        Column("start_ns", pl.Int64, "ns", "First time that the correction applies to.", nullable=True),
        Column("offset_ns", pl.Int64, "ns", "Added to raw timestamps to give the common clock."),
        Column("drift_ppm", pl.Float64, "ppm", "Drift relative to the common clock.", nullable=True),
        Column(
            "error_lo_ns",
            pl.Int64,
            "ns",
            "Lower end of the guaranteed bound of the error; null: unbounded.",
            nullable=True,
        ),
        Column(
            "error_hi_ns",
            pl.Int64,
            "ns",
            "Upper end of the guaranteed bound of the error; null: unbounded.",
            nullable=True,
        ),
        Column(
            "observation_count",
            pl.Int64,
            "",
            "Number of observations that determine the offset.",
            nullable=True,
        ),
        Column(
            "estimated_error_ns",
            pl.Int64,
            "ns",
            "Estimated error: 99 % of all errors are smaller, on either side; null: no estimate.",
            nullable=True,
        ),
        Column(
            "rate_error_ns",
            pl.Int64,
            "ns",
            "Error of removing changes of the clock's rate, part of the bound; null: none were removed.",
            nullable=True,
        ),
        Column("method", pl.String, "", "How the offset was found."),
    ),
)

DIAGNOSTICS = Table(
    "diagnostics",
    "one problem or loss in the data",
    ("severity", "source"),
    (
        Column(
            "severity",
            SeverityType,
            "",
            "error: data are missing; warning: results may be misleading; info: for information.",
        ),
        Column("code", pl.String, "", "Stable code of the kind of finding; listed in docs/diagnostics.md."),
        Column("source", pl.String, "", "File it concerns.", nullable=True),
        Column("rank", pl.Int32, "", "Rank it concerns.", nullable=True),
        Column("location", pl.String, "", "Where in the source.", nullable=True),
        Column("message", pl.String, "", "What was found and what was done about it."),
        Column("count", pl.Int64, "", "How many occurrences the row covers."),
    ),
)

COUNTERS = Table(
    "counters",
    "value of one counter of one rank at one moment",
    ("rank", "name", "time_ns"),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column(
            "name", pl.String, "", "Name of the counter; vocabulary/counters.py has those of the recorder."
        ),
        Column("time_ns", pl.Int64, "ns", "When the counter was read."),
        Column("value", pl.Float64, "", "Its value."),
        Column("unit", pl.String, "", "Unit of the value; null: a number without one.", nullable=True),
        Column("device", pl.String, "", "Device that the counter belongs to; null: the host.", nullable=True),
        Column("step", pl.Int32, "", "Training step that was running.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of the action that the value belongs to.", nullable=True),
        Column("microbatch", pl.Int32, "", "Micro-batch that the value belongs to.", nullable=True),
    ),
)

KERNELS = Table(
    "kernels",
    "one kernel, copy or fill on a device; read on request (`kernels=True`)",
    ("rank", "start_ns", "end_ns"),
    (
        Column("rank", pl.Int32, "", "Global rank of the process that launched it."),
        Column("stream", pl.Int64, "", "Number of the stream that it ran on.", nullable=True),
        Column("name", pl.String, "", "Its name in the trace."),
        Column("category", CategoryType, "", "What it does, from its name: see vocabulary/kernels.py."),
        Column(
            "operation",
            OperationType,
            "",
            "Of communication: which operation it is, or a part of; null: unknown.",
            nullable=True,
        ),
        Column("start_ns", pl.Int64, "ns", "Start on the device."),
        Column("end_ns", pl.Int64, "ns", "End on the device."),
        Column(
            "kind",
            KindType,
            "",
            "Kind of the action that launched it; null: it belongs to no action.",
            nullable=True,
        ),
        Column("step", pl.Int32, "", "Training step of that action.", nullable=True),
        Column("stage", pl.Int32, "", "Stage of that action.", nullable=True),
        Column("microbatch", pl.Int32, "", "Micro-batch of that action.", nullable=True),
        Column("pair", pl.Int32, "", "Overlapped pair of that action, as in spans.", nullable=True),
        Column("part", pl.String, "", "Annotated part of the action, such as `attn(F)`.", nullable=True),
    ),
)

TABLES: tuple[Table, ...] = (SPANS, RANKS, STEPS, CLOCKS, DIAGNOSTICS, COUNTERS, KERNELS)
