"""How much communication is hidden behind compute, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stagescope.analysis.kernels.communication import ANY, RUN
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.durations import duration_text
from stagescope.vocabulary.kernels import COMBINE, DISPATCH

if TYPE_CHECKING:
    from typing import Any

NOT_NAMED = (ANY, DISPATCH, COMBINE)
"""Dispatch and combine are in the sentence about all-to-all."""


def communication_sentences(kinds: pl.DataFrame) -> tuple[str, ...]:
    """Return one sentence for each operation of the run in a table KERNEL_COMMUNICATION_KINDS, the longest first."""
    known = kinds.filter(
        (pl.col("within") == RUN)
        & pl.col("operation").is_not_null()
        & ~pl.col("operation").is_in(NOT_NAMED)
        & pl.col("hidden_fraction").is_not_null()
    )
    return tuple(_sentence(row) for row in known.iter_rows(named=True))


def operation_text(operation: str | None) -> str:
    """Return an operation in words.

    >>> operation_text("all_to_all"), operation_text("send_recv"), operation_text(None)
    ('all-to-all', 'send and receive', 'unknown operation')
    """
    if operation is None:
        return "unknown operation"
    return {"send_recv": "send and receive"}.get(operation, operation.replace("_", "-"))


def _sentence(row: dict[str, Any]) -> str:
    share = f"{100 * row['hidden_fraction']:.1f} %"
    hidden, whole = duration_text(row["hidden_ns"]), duration_text(row["communication_ns"])
    return (
        f"{share} of the {operation_text(row['operation'])} communication is hidden behind compute: {hidden} of "
        f"{whole} in {counted(row['kernels'], 'kernel')}."
    )
