"""Sizes and coordinates of Megatron's parallel groups, from its module parallel_state."""

from __future__ import annotations

from typing import Any


def parallel_sizes(state: Any) -> dict[str, object]:
    """Return the sizes of the parallel groups, under the names that Ascend's tools read."""
    names = {
        "tensor_model_parallel_size": "get_tensor_model_parallel_world_size",
        "pipeline_model_parallel_size": "get_pipeline_model_parallel_world_size",
        "data_parallel_size": "get_data_parallel_world_size",
        "context_parallel_size": "get_context_parallel_world_size",
        "expert_model_parallel_size": "get_expert_model_parallel_world_size",
    }
    return {name: getattr(state, function)() for name, function in names.items() if hasattr(state, function)}


def parallel_ranks(state: Any) -> dict[str, object]:
    """Return the coordinates of this rank in the other parallel groups."""
    names = {
        "dp": "get_data_parallel_rank",
        "tp": "get_tensor_model_parallel_rank",
        "cp": "get_context_parallel_rank",
        "ep": "get_expert_model_parallel_rank",
    }
    return {name: getattr(state, function)() for name, function in names.items() if hasattr(state, function)}
