"""Errors about what was to be written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors.base import StagescopeError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from typing_extensions import Self


class OutputError(StagescopeError):
    """What was asked for cannot be written."""

    @classmethod
    def exists(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for an output that would be overwritten."""
        return cls(f"{path} already exists", "use --force to replace it, or name another one")

    @classmethod
    def cannot_write(cls, path: str | os.PathLike[str], reason: OSError) -> Self:
        """Return the error for an output that the system refuses."""
        return cls(f"cannot write {path}: {reason.strerror or reason}")

    @classmethod
    def read_only(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a file that is to be changed in place and must not be."""
        return cls(f"{path} is read-only; nothing was changed", "without --in-place copies are written")

    @classmethod
    def in_use(cls, path: str | os.PathLike[str], reason: str) -> Self:
        """Return the error for a database that another program is changing."""
        return cls(
            f"{path} is in use ({reason}); nothing was changed", "close what has it open, or write copies"
        )

    @classmethod
    def no_room(cls, path: str | os.PathLike[str], needed_bytes: int, free_bytes: int) -> Self:
        """Return the error for copies that are larger than what is free."""
        return cls(
            f"no room for copies in {path}: they take {needed_bytes / 1e9:.2f} GB, {free_bytes / 1e9:.2f} GB are free",
            "name another place with -o, fewer ranks with --rank, or change the profiles --in-place",
        )

    @classmethod
    def inside_input(cls, path: str | os.PathLike[str], read: str | os.PathLike[str]) -> Self:
        """Return the error for copies among what they are copied from."""
        return cls(f"{path} lies in {read}: the copies would be read as profiles of the same ranks next time")

    @classmethod
    def nothing_written(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a chart of which no rank could be written."""
        return cls(f"no rank of {path} could be written")

    @classmethod
    def unknown_format(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for an export format that no writer offers."""
        said = f"no export format {name!r}" if name else "a file without a suffix tells no export format"
        return cls(
            f"{said}; known: {', '.join(known)}", "name the format with --to, or by the suffix of the file"
        )
