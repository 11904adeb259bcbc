"""Errors about what was given to be read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stagescope.vocabulary.errors.base import StagescopeError
from stagescope.vocabulary.number_ranges import compact_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from typing_extensions import Self


class InputError(StagescopeError):
    """What was given cannot be read."""

    @classmethod
    def no_such_path(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a path that does not exist."""
        return cls(f"no such file or directory: {path}")

    @classmethod
    def nothing_to_read(cls, path: str | os.PathLike[str], formats: Iterable[str]) -> Self:
        """Return the error for a directory without any file that a reader knows."""
        return cls(
            f"nothing to read in {path}: no file of a format that stagescope reads ({', '.join(formats)})",
            "record a run with: stagescope run -o DIR -- torchrun ... train.py",
        )

    @classmethod
    def not_recognized(cls, path: str | os.PathLike[str], formats: Iterable[str], head: bytes) -> Self:
        """Return the error for a file that no reader recognizes by its content."""
        return cls(f"{path} is not a recording or a trace that stagescope knows ({_beginning(head)})",
                   f"formats it reads: {', '.join(formats)}")  # fmt: skip

    @classmethod
    def cannot_read(cls, path: str | os.PathLike[str], reason: OSError) -> Self:
        """Return the error for a file that the system refuses to open."""
        return cls(f"cannot read {path}: {reason.strerror or reason}")

    @classmethod
    def other_run(cls, path: str | os.PathLike[str], reason: str) -> Self:
        """Return the error for a file that does not go together with the others of a call."""
        return cls(f"{path} is not of the same run as the other files: {reason}", "give the files of one run")

    @classmethod
    def layout_too_small(cls, given: Mapping[str, int], ranks: int, found: int) -> Self:
        """Return the error for parallel sizes that make fewer ranks than there are."""
        return cls(f"{_sizes(given)} make {ranks} ranks, but there are {found}")

    @classmethod
    def layout_does_not_divide(cls, given: Mapping[str, int], ranks: int, found: int) -> Self:
        """Return the error for parallel sizes that do not divide the number of ranks."""
        return cls(f"{found} ranks cannot be divided by {_sizes(given)} (together {ranks})")

    @classmethod
    def name_not_text(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a file whose name is no text in the system's encoding."""
        shown = os.fsencode(path).decode("utf-8", "replace")
        return cls(f"cannot read {shown}: its name is not valid UTF-8", "rename it, or a directory above it")

    @classmethod
    def worker_killed(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a worker process that the system ended while files were being read."""
        return cls(
            f"{path} was not read: a worker process that was reading traces was killed",
            "the system may have run out of memory: give fewer files at once",
        )

    @classmethod
    def damaged(cls, path: str | os.PathLike[str], what: str) -> Self:
        """Return the error for a file of a known format with nothing usable in it."""
        return cls(f"{path}: {what}")

    @classmethod
    def duplicate_rank(cls, rank: int, sources: Iterable[str]) -> Self:
        """Return the error for two recordings that claim to be the same rank."""
        return cls(
            f"two recordings of rank {rank}: {' and '.join(sources)}",
            "give one run at a time: name one run's directory, or remove the recordings of the other run",
        )

    @classmethod
    def no_pipeline_in_traces(
        cls, paths: Sequence[str | os.PathLike[str]], reasons: Sequence[str] = ()
    ) -> Self:
        """Return the error for traces of torch.profiler that name no action of a pipeline and let none be inferred.

        `reasons` say what stood against it, if anything did.
        """
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return cls(
            f"no pipeline action in {paths[0]}{more}: nothing in it is called like PP:1F0 or Forward 0, "
            + "; ".join(["and no forward and backward can be told from its operators", *reasons]),
            "put \"with torch.profiler.record_function(f'F{stage}.{microbatch}'):\" around each forward (B around each "
            "backward) and profile with ProfilerActivity.CPU; or start the training with: "
            "stagescope run --also kineto -- torchrun ... train.py",
        )

    @classmethod
    def no_ranges(cls, path: str | os.PathLike[str], ranges: int, names: Sequence[str]) -> Self:
        """Return the error for a report of Nsight Systems in which no NVTX range is a action of a pipeline."""
        shown = ", ".join(repr(name[:60]) for name in names)
        found = (
            f"none of its {ranges} NVTX ranges is called like one: {shown}"
            if ranges
            else "it has no NVTX range"
        )
        return cls(
            f"no pipeline action in {path}: {found}",
            "put \"with torch.cuda.nvtx.range(f'F{stage}.{microbatch}'):\" around each forward (B around each "
            "backward) and record with nsys profile -t cuda,nvtx; or say how actions are called with --pattern; or start "
            "the training with: nsys profile -t cuda,nvtx stagescope run --also nvtx -- torchrun ... train.py",
        )

    @classmethod
    def no_action_names(cls, path: str | os.PathLike[str], pattern: str | None, names: Sequence[str]) -> Self:
        """Return the error for a trace in which no slice is called as a pattern, or any common one, describes."""
        called = f"as --pattern {pattern!r} describes" if pattern else "in a way that is known here"
        shown = ", ".join(repr(name[:60]) for name in names) or "none"
        return cls(
            f"{path}: no slice is called {called}; the most frequent names: {shown}",
            "say how actions are called, such as --pattern '{kind}_{microbatch}' for forward_3 "
            "(also {stage}, {chunk}, {step}, {rank}, {peer}, and * for anything)",
        )

    @classmethod
    def no_step(cls, step: int, present: Iterable[int]) -> Self:
        """Return the error for a step that was asked for and not recorded."""
        return cls(f"step {step} was not recorded; recorded: {compact_ranges(present)}")

    @classmethod
    def no_ranks(cls, ranks: Iterable[int], present: Iterable[int]) -> Self:
        """Return the error for ranks that were asked for and not recorded."""
        return cls(f"rank {compact_ranges(ranks)} was not recorded; recorded: {compact_ranges(present)}")


class TableError(StagescopeError):
    """A table breaks its declaration."""

    @classmethod
    def missing_columns(cls, table: str, missing: Iterable[str], where: str = "") -> Self:
        """Return the error for a table without a required column."""
        return cls(f"{where + ': ' if where else ''}table {table} lacks the column(s) {', '.join(missing)}")

    @classmethod
    def wrong_values(cls, table: str, column: str, found: object, expected: str, where: str = "") -> Self:
        """Return the error for a column with values that its declaration does not allow."""
        at = where + ": " if where else ""
        return cls(f"{at}table {table}, column {column}: expected {expected}, found {found!r}")

    @classmethod
    def no_rows(cls, table: str, where: str = "") -> Self:
        """Return the error for a table without rows."""
        return cls(f"{where + ': ' if where else ''}table {table} has no rows")


def _sizes(given: Mapping[str, int]) -> str:
    """Return parallel sizes in words: pp 4 x tp 2."""
    return " x ".join(f"{name} {size}" for name, size in given.items())


def _beginning(head: bytes) -> str:
    """Return what a file that nobody knows begins with, in words."""
    if not head:
        return "it is empty"
    is_saved = head.startswith(b"PK") and b"data.pkl" in head
    if is_saved or (len(head) > 1 and head[:1] == b"\x80" and 1 < head[1] <= MOST_PICKLE_PROTOCOL):
        return "it is a pickle, as torch.save writes: none is ever loaded, for that runs what stands in it"
    return f"it begins with {head[:12]!r}"


MOST_PICKLE_PROTOCOL = 5
