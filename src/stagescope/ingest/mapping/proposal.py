"""Propose where the identity of actions is stated, from the names of the arguments of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

STEP_KEYS = ("iteration", "step", "global_step", "train_step", "iter", "train_iter", "step_id")
MICROBATCH_KEYS = (
    "microbatch", "micro_batch", "microbatch_id", "micro_batch_id", "microbatch_idx", "mb_id", "mbid", "mb",
)  # fmt: skip
KEYS_OF_FIELDS: dict[str, tuple[str, ...]] = {
    "step": STEP_KEYS,
    "microbatch": MICROBATCH_KEYS,
    "stage": ("stage", "stage_id", "stage_index", "virtual_stage", "global_stage"),
    "chunk": ("model_chunk", "chunk", "model_chunk_id", "chunk_id", "vp_stage", "vpp_rank", "virtual_rank"),
    "rank": ("rank", "global_rank", "g_rk", "rank_id"),
    "pp": ("pp_rank", "pp_rk", "pp", "pipeline_rank", "pipeline_parallel_rank"),
    "dp": ("dp_rank", "dp_rk", "dp", "data_parallel_rank"),
    "tp": ("tp_rank", "tp_rk", "tp", "tensor_parallel_rank"),
}
"""Names of arguments, the most likely first, that writers of traces use for the fields of a mapping."""


def proposed_fields(keys: Collection[str]) -> dict[str, str]:
    """Return the expressions of the fields that the arguments `keys` of events seem to state.

    >>> proposed_fields(["iteration", "mb_id", "bytes"])
    {'step': 'args.iteration', 'microbatch': 'args.mb_id'}
    """
    lowered = {key.lower(): key for key in sorted(keys, reverse=True)}
    found = {
        field: next((lowered[name] for name in names if name in lowered), None)
        for field, names in KEYS_OF_FIELDS.items()
    }
    return {field: _argument(key) for field, key in found.items() if key is not None}


def proposed_options(keys: Collection[str]) -> list[str]:
    """Return the same as options of a command: ``--map step=args.iteration``."""
    return [f"--map {field}={expression}" for field, expression in proposed_fields(keys).items()]


def _argument(key: str) -> str:
    return f"args.{key}" if key.isidentifier() else f"args['{key}']"
