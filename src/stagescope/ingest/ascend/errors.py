"""Errors of Ascend profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


def no_marks(path: str | os.PathLike[str], files: int) -> InputError:
    """Return the error for profiles without a mark of the pipeline's actions."""
    which = path if files == 1 else f"{path} and {files - 1} more profiles"
    return InputError(
        f"{which}: no mark of a forward or backward with a task on the device",
        "mark these functions with mstx and profile with export_type db: see docs/ascend.md",
    )


def no_marks_in_damaged(path: str | os.PathLike[str], faults: Sequence[str]) -> InputError:
    """Return the error for profiles without a mark in their readable part, with the `faults` of their tables."""
    return InputError.damaged(
        path, f"no mark of a forward or backward in its readable part: {'; '.join(faults)}"
    )
