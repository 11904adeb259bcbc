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
    def unknown_format(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for an export format that no writer offers."""
        said = f"no export format {name!r}" if name else "a file without a suffix tells no export format"
        return cls(
            f"{said}; known: {', '.join(known)}", "name the format with --to, or by the suffix of the file"
        )
