"""Errors about OTLP traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

GROUPS = (
    "record Megatron with MEGATRON_OTEL_RANK_STRATEGY=all_ranks and "
    "MEGATRON_OTEL_SPAN_GROUPS=per_step,microbatch,communication"
)


def no_actions(path: str | os.PathLike[str], count: int, names: Sequence[str]) -> InputError:
    """Return the error for files in which no span is an action; `names` are examples."""
    shown = ", ".join(repr(name[:60]) for name in names)
    found = f"none of its {count} spans is named like one: {shown}" if count else "it has no span"
    return InputError(
        f"no pipeline action in {path}: {found}", f"{GROUPS}; or describe the names of actions with --pattern"
    )


def no_steps(path: str | os.PathLike[str], count: int) -> InputError:
    """Return the error for actions without a step or a micro-batch."""
    return InputError(
        f"{path}: {count} spans of micro-batches state no micro-batch and are in no span of a training step, so it is "
        "unknown which belong together",
        GROUPS,
    )
