"""The dimensions of parallelism, and the order in which Megatron numbers ranks."""

from __future__ import annotations

DIMENSIONS: tuple[str, ...] = ("pp", "dp", "tp", "cp")
"""Pipeline, data, tensor and context parallelism: the product of their sizes is the number of ranks."""

NO_FACTOR = "ep"
"""Expert parallelism subdivides data- and context-parallel ranks, so it does not multiply the number of ranks."""

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
"""Megatron's default: the first dimension varies fastest from rank to rank (megatron/core/parallel_state.py, 0.16)."""
