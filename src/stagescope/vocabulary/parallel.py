"""The dimensions along which a model is trained in parallel, and how ranks are numbered through them."""

from __future__ import annotations

DIMENSIONS: tuple[str, ...] = ("pp", "dp", "tp", "cp")
"""Pipeline, data, tensor and context: their sizes multiply to the number of ranks."""

NO_FACTOR = "ep"
"""Expert parallelism divides data- and context-parallel ranks once more."""

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
"""Megatron's: the first dimension varies fastest from rank to rank (megatron/core/parallel_state.py, 0.16)."""
