"""What a device kernel does: categories, and the operations of communication."""

from __future__ import annotations

GEMM, ATTENTION, ELEMENTWISE = "gemm", "attention", "elementwise"
COMMUNICATION, MEMCPY, OTHER = "communication", "memcpy", "other"

CATEGORIES: tuple[str, ...] = (GEMM, ATTENTION, ELEMENTWISE, COMMUNICATION, MEMCPY, OTHER)
"""Memcpy is every copy and fill that the driver makes; other is every kernel that is none of the rest."""

NOT_COMPUTE: tuple[str, ...] = (COMMUNICATION, MEMCPY)
"""Kernels of all other categories compute, and can hide communication."""

DISPATCH, COMBINE, ALL_TO_ALL = "dispatch", "combine", "all_to_all"
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all_gather", "reduce_scatter", "all_reduce"
BROADCAST, REDUCE, SEND_RECV = "broadcast", "reduce", "send_recv"

OPERATIONS: tuple[str, ...] = (
    DISPATCH, COMBINE, ALL_TO_ALL, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST, REDUCE, SEND_RECV,
)  # fmt: skip
"""Dispatch and combine are the two all-to-all exchanges of expert parallelism; send_recv is a message to one rank."""

ALL_TO_ALLS: tuple[str, ...] = (DISPATCH, COMBINE, ALL_TO_ALL)
