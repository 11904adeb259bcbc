"""Errors of writing a pipeline chart into Ascend profiles or copies of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    import os


def read_only(path: str | os.PathLike[str]) -> OutputError:
    """Return the error for a read-only file that was to be changed in place."""
    return OutputError(f"{path} is read-only; nothing was changed", "omit --in-place to write copies")


def is_link(path: str | os.PathLike[str]) -> OutputError:
    """Return the error for a link that was to be changed in place: its target may be anywhere."""
    return OutputError(
        f"{path} is a symbolic link; nothing was changed",
        "omit --in-place to write copies, or name the original",
    )


def in_use(path: str | os.PathLike[str], reason: str) -> OutputError:
    """Return the error for a database that another program is changing."""
    return OutputError(
        f"{path} is in use ({reason}); nothing was changed",
        "close the program that has it open, or write copies",
    )


def no_space(path: str | os.PathLike[str], needed_bytes: int, free_bytes: int) -> OutputError:
    """Return the error for copies that are larger than the free space."""
    return OutputError(
        f"not enough space for copies in {path}: {needed_bytes / 1e9:.2f} GB are needed, "
        f"{free_bytes / 1e9:.2f} GB are free",
        "choose another directory with -o or fewer ranks with --rank, or change the profiles --in-place",
    )


def inside_input(path: str | os.PathLike[str], read: str | os.PathLike[str]) -> OutputError:
    """Return the error for copies inside the directory that they are copied from."""
    return OutputError(
        f"{path} is inside {read}: the copies would be read as profiles of the same ranks next time"
    )
