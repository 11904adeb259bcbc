"""Errors about reports of Nsight Systems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def no_ranges(path: str | os.PathLike[str], ranges: int, names: Sequence[str]) -> InputError:
    """Return the error for a report in which no NVTX range is an action; `names` are examples of its ranges."""
    shown = ", ".join(repr(name[:60]) for name in names)
    found = (
        f"none of its {ranges} NVTX ranges is named like one: {shown}" if ranges else "it has no NVTX range"
    )
    return InputError(
        f"no pipeline action in {path}: {found}",
        "put \"with torch.cuda.nvtx.range(f'F{stage}.{microbatch}'):\" around each forward (B around each "
        "backward) and record with nsys profile -t cuda,nvtx; or describe action names with --pattern; or start "
        "the training with: nsys profile -t cuda,nvtx stagescope run --also nvtx -- torchrun ... train.py",
    )


def no_ranges_in_damaged(path: str | os.PathLike[str], faults: Sequence[str]) -> InputError:
    """Return the error for a report without an action in its readable part, with the `faults` of its tables."""
    return InputError.damaged(path, f"no pipeline action in its readable part: {'; '.join(faults)}")
