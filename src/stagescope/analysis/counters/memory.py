"""The most memory that each rank used, as its counters show it."""

from __future__ import annotations

import polars as pl

from stagescope.model.tables import Column, Table
from stagescope.vocabulary.counters import ALLOCATED, PEAK_ALLOCATED, PEAK_RESIDENT, RESERVED, RESIDENT

RANK_MEMORY = Table(
    "rank_memory",
    "one rank with a counter of memory, over the whole recording",
    ("rank",),
    (
        Column("rank", pl.Int32, "", "Global rank."),
        Column("device", pl.String, "", "Device of the first two columns.", nullable=True),
        Column("allocated_bytes", pl.Int64, "B", "Most device memory in tensors.", nullable=True),
        Column("reserved_bytes", pl.Int64, "B", "Most device memory that the allocator held.", nullable=True),
        Column("resident_bytes", pl.Int64, "B", "Most memory of the process in RAM.", nullable=True),
    ),
)

_COUNTERS_OF_COLUMN = {
    "allocated_bytes": (PEAK_ALLOCATED, ALLOCATED),
    "reserved_bytes": (RESERVED,),
    "resident_bytes": (PEAK_RESIDENT, RESIDENT),
}


def measure_rank_memory(counters: pl.DataFrame) -> pl.DataFrame:
    """Return the table RANK_MEMORY of a table of counters. What was not recorded is null.

    A peak is that since the process started, so it may be older than the first recorded step; if the training resets
    it, that between two readings. Reserved memory is only known at the readings.
    """
    return memory_of_ranks(most_memory(counters))


def most_memory(counters: pl.DataFrame) -> pl.DataFrame:
    """Return the largest values of the counters of memory: rank, name, device, value in bytes and time_ns of the last.

    `join_memory` adds those of other counters of the same ranks.
    """
    every = [name for names in _COUNTERS_OF_COLUMN.values() for name in names]
    known = counters.filter(pl.col("name").is_in(every))
    return join_memory(known.select("rank", "name", "device", "value", "time_ns"))


def join_memory(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the same for rows of several tables of most_memory."""
    return rows.group_by("rank", "name", "device", maintain_order=True).agg(
        pl.max("value"), pl.max("time_ns")
    )


def memory_of_ranks(most: pl.DataFrame) -> pl.DataFrame:
    """Return the table RANK_MEMORY, given all rows of most_memory."""
    largest = {
        column: pl.col("value").filter(pl.col("name").is_in(names)).max().cast(pl.Int64)
        for column, names in _COUNTERS_OF_COLUMN.items()
    }
    in_order = most.sort("rank", "name", "time_ns", "device")
    found = in_order.group_by("rank").agg(device=pl.col("device").drop_nulls().last(), **largest)
    return found.select(pl.col(name).cast(dtype) for name, dtype in RANK_MEMORY.schema.items()).sort("rank")
