"""Errors of stagescope's own recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os


def newer_version(path: str | os.PathLike[str], found: int, known: int) -> InputError:
    """Return the error for a recording written by a newer stagescope."""
    return InputError(
        f"{path} has format version {found}; this stagescope reads up to {known}",
        "upgrade stagescope to read it",
    )


def changed_meanwhile(source: str) -> InputError:
    """Return the error for a recording that was written, replaced or deleted while its run was read."""
    return InputError(
        f"{source} has changed while it was read",
        "read the run when no process writes its recordings any more",
    )
