"""Errors about output files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stagescope.vocabulary.errors.base import StagescopeError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from typing_extensions import Self


class OutputError(StagescopeError):
    """An output file cannot be written."""

    @classmethod
    def exists(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for an output that would be overwritten."""
        return cls(f"{path} already exists", "use --force to replace it, or choose another path")

    @classmethod
    def other_run(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a directory with files of another run."""
        return cls(
            f"{path} already has files of another run; --force replaces them, --join records beside them",
            "choose another directory",
        )

    @classmethod
    def being_written(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a stored run that another process is writing."""
        return cls(
            f"another process is storing into {path}", "wait until it has finished, or choose another path"
        )

    @classmethod
    def not_stored(cls, path: str | os.PathLike[str], reason: OSError) -> Self:
        """Return the error for a run that the operating system refuses to store."""
        return cls(
            f"cannot store into {path}: {reason.strerror or reason}",
            "run the same command again: files that are complete are kept",
        )

    @classmethod
    def other_sources(cls, path: str | os.PathLike[str], difference: str) -> Self:
        """Return the error for a stored run that was made from other files, or with other facts."""
        return cls(
            f"{path} has a run that was stored differently: {difference}",
            "use --force to replace it, or choose another path",
        )

    @classmethod
    def empty_path(cls) -> Self:
        """Return the error for an empty path of a stored run, which would mean the current directory."""
        return cls("the path of the stored run is empty", "name a directory, such as run.stagescope")

    @classmethod
    def unreadable_run(cls, reason: StagescopeError) -> Self:
        """Return the error for a stored run whose manifest cannot be read."""
        return cls(str(reason), "use --force to replace it, or choose another path")

    @classmethod
    def no_stored_run(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for an output directory with other content than a stored run."""
        return cls(f"{path} exists and is not a stored run", "choose another path")

    @classmethod
    def cannot_write(cls, path: str | os.PathLike[str], reason: OSError) -> Self:
        """Return the error for a file that the operating system refuses to write."""
        return cls(f"cannot write {path}: {reason.strerror or reason}")

    @classmethod
    def no_stream(cls) -> Self:
        """Return the error for -, where a path is needed."""
        return cls("this cannot be written to standard output (-)", "name a path")

    @classmethod
    def name_not_text(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a directory whose name is not valid text, which other programs could not open."""
        shown = os.fsencode(path).decode("utf-8", "replace")
        return cls(f"cannot write {shown}: its name is not valid UTF-8", "choose another name")

    @classmethod
    def no_original(cls, rank: int | None, source: str | None) -> Self:
        """Return the error for a rank that was not read from a trace that can be passed on as it is."""
        of = "the run" if rank is None else f"rank {rank}"
        read_from = f": it was read from {source}" if source else ""
        return cls(
            f"no original trace of {of}{read_from}",
            "archives and merged traces need the files of torch.profiler, one per rank, where they were read from",
        )

    @classmethod
    def unknown_format(cls, name: str, known: Iterable[str]) -> Self:
        """Return the error for an unknown export format, or a path without a suffix."""
        problem = f"unknown export format {name!r}" if name else "no export format: the file has no suffix"
        return cls(
            f"{problem}; supported: {', '.join(known)}",
            "choose a format with --to, or by the suffix of the file",
        )
