"""Errors about input files and tables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from stagescope.vocabulary.errors.base import StagescopeError
from stagescope.vocabulary.number_ranges import compact_ranges
from stagescope.vocabulary.text_beginnings import text_encoding, text_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self


class InputError(StagescopeError):
    """An input file cannot be read or used."""

    @classmethod
    def no_such_path(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a path that does not exist."""
        return cls(f"no such file or directory: {path}")

    @classmethod
    def nothing_to_read(cls, path: str | os.PathLike[str], formats: Iterable[str]) -> Self:
        """Return the error for a directory without any file in a supported format."""
        return cls(
            f"no readable file in {path}: none is in a supported format ({', '.join(formats)})",
            "record a run with: stagescope run -o DIR -- torchrun ... train.py",
        )

    @classmethod
    def no_recordings(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a path without recordings of stagescope, where a command needs these."""
        return cls(
            f"no recording of stagescope in {path}",
            "record a run with: stagescope run -o DIR -- torchrun ... train.py",
        )

    @classmethod
    def pseudo_file_system(cls, path: str | os.PathLike[str], kind: str) -> Self:
        """Return the error for a directory of a file system that the kernel makes up, such as /proc."""
        return cls(
            f"{path} is not searched: its files are made up by the kernel ({kind})",
            "name the directory in which a run was recorded",
        )

    @classmethod
    def only_stored_runs(cls, path: str | os.PathLike[str], run: str | os.PathLike[str]) -> Self:
        """Return the error for a directory with stored runs and nothing else to read."""
        return cls(f"no recording or trace in {path}, but a stored run", f"name it: {run}")

    @classmethod
    def unfinished_store(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a stored run without a manifest."""
        return cls(
            f"{path} is being stored, or storing it was interrupted",
            "run the same `stagescope store` command again: it goes on where it stopped",
        )

    @classmethod
    def already_stored(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for storing a stored run."""
        return cls(f"{path} is a stored run already", "copy the directory, or store what it was stored from")

    @classmethod
    def source_in_output(cls, path: str | os.PathLike[str], directory: str | os.PathLike[str]) -> Self:
        """Return the error for a file to read that is in the directory to write."""
        return cls(
            f"{path} is in {directory}, where the run is to be stored", "choose a directory of its own"
        )

    @classmethod
    def stored_with_others(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a stored run that was named together with other inputs."""
        return cls(f"{path} is a stored run, which is read alone", "store all files of the run together")

    @classmethod
    def not_recognized(cls, path: str | os.PathLike[str], formats: Iterable[str], head: bytes) -> Self:
        """Return the error for a file whose content no reader recognizes."""
        return cls(f"{path} is not a recording or trace in a supported format ({_beginning(head)})",
                   text_hint(head) or f"supported formats: {', '.join(formats)}")  # fmt: skip

    @classmethod
    def all_reversed(cls, path: str | os.PathLike[str], count: int, example: Mapping[str, object]) -> Self:
        """Return the error for a run whose spans all end before they start; `example` is one of them."""
        times = f"the first from {example['start_ns']} to {example['end_ns']} ns"
        return cls(
            f"{path}: all {count:,} spans end before they start, {times}",
            "check that starts and ends have the same unit, nanoseconds, and the same clock",
        )

    @classmethod
    def cannot_read(cls, path: str | os.PathLike[str], reason: OSError) -> Self:
        """Return the error for a file that the operating system refuses to open."""
        return cls(f"cannot read {path}: {reason.strerror or reason}")

    @classmethod
    def no_mapping_needed(cls, path: str | os.PathLike[str], reader: str) -> Self:
        """Return the error for a file whose format states its actions, so that there is nothing to propose."""
        return cls(
            f"{path} is read by the reader {reader}, whose format states what its spans are: there is nothing to map",
            "inspect lists Chrome and Perfetto traces; see what this file contains with stagescope show",
        )

    @classmethod
    def not_a_file(cls, path: str | os.PathLike[str], kind: str) -> Self:
        """Return the error for a path that leads to something else than a file with content."""
        return cls(f"cannot read {path}: it is {kind}, not a file", "write what it provides to a file first")

    @classmethod
    def other_run(cls, path: str | os.PathLike[str], reason: str) -> Self:
        """Return the error for a file of a different run than the other files."""
        return cls(
            f"{path} belongs to another run than the other files: {reason}", "pass the files of one run only"
        )

    @classmethod
    def layout_too_small(cls, given: Mapping[str, int], ranks: int, found: int) -> Self:
        """Return the error for parallel sizes with fewer ranks than were recorded."""
        return cls(f"{_sizes(given)} make {ranks} ranks, but there are {found}")

    @classmethod
    def layout_does_not_divide(cls, given: Mapping[str, int], ranks: int, found: int) -> Self:
        """Return the error for parallel sizes that do not divide the number of ranks."""
        return cls(f"{found} ranks cannot be divided by {_sizes(given)} (together {ranks})")

    @classmethod
    def name_not_text(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a file whose name is not valid text."""
        shown = os.fsencode(path).decode("utf-8", "replace")
        return cls(f"cannot read {shown}: its name is not valid UTF-8", "rename it or its directory")

    @classmethod
    def worker_killed(cls, path: str | os.PathLike[str]) -> Self:
        """Return the error for a worker process that was killed while it read files."""
        return cls(
            f"{path} was not read: a worker process that was reading traces was killed",
            "the system may have run out of memory: pass fewer files at once",
        )

    @classmethod
    def damaged(cls, path: str | os.PathLike[str], what: str) -> Self:
        """Return the error for a file of a known format with nothing usable in it."""
        return cls(f"{path}: {what}")

    @classmethod
    def beyond_limit(cls, where: str | os.PathLike[str], what: str, most: str, option: str) -> Self:
        """Return the error for a file that exceeds a limit; `what` is what is larger than `most`."""
        return cls(
            f"{where}: {what} more than the limit of {most}",
            f"if you trust the file, raise the limit with {option}, or a larger value; 0 for no limit",
        )

    @classmethod
    def duplicate_rank(cls, rank: int, sources: Iterable[str]) -> Self:
        """Return the error for two recordings that claim to be the same rank."""
        return cls(
            f"two recordings of rank {rank}: {' and '.join(sources)}",
            "pass one run at a time: the directory of one run, or remove the recordings of the other run",
        )

    @classmethod
    def no_attempt(cls, wanted: int, count: int) -> Self:
        """Return the error for an attempt that was not recorded."""
        present = "attempt 0" if count == 1 else f"attempts 0-{count - 1}"
        return cls(
            f"there is no attempt {wanted}: the run has {present}", "omit --attempt for the last complete one"
        )

    @classmethod
    def no_steps(cls, wanted: str, first: object, last: object) -> Self:
        """Return the error for steps that were not recorded."""
        return cls(
            f"there is no step in {wanted}: the run has steps {first} to {last}",
            f"give a range A:B within {first} to {last}, or omit --steps for all",
        )

    @classmethod
    def no_known_steps(cls, wanted: str) -> Self:
        """Return the error for steps of a run whose steps are unknown."""
        return cls(f"steps {wanted} cannot be read: nothing states the steps of this run", "omit --steps")

    @classmethod
    def no_pipeline(cls, wanted: str, known: Iterable[str]) -> Self:
        """Return the error for a pipeline that was not recorded."""
        names = ", ".join(known)
        return cls(
            f"there is no pipeline {wanted!r}: "
            + (f"the run has {names}" if names else "the run names none"),
            "omit --pipeline for the one that took the most time",
        )

    @classmethod
    def no_step(cls, step: int, present: Iterable[int]) -> Self:
        """Return the error for a requested step that was not recorded."""
        return cls(f"step {step} was not recorded; recorded: {compact_ranges(present)}")

    @classmethod
    def no_ranks(cls, ranks: Iterable[int], present: Iterable[int]) -> Self:
        """Return the error for requested ranks that were not recorded."""
        return cls(f"rank {compact_ranges(ranks)} was not recorded; recorded: {compact_ranges(present)}")


class TableError(StagescopeError):
    """A table does not match its declaration."""

    @classmethod
    def missing_columns(cls, table: str, missing: Iterable[str], where: str = "") -> Self:
        """Return the error for a table without a required column."""
        return cls(f"{where + ': ' if where else ''}table {table} lacks the column(s) {', '.join(missing)}")

    @classmethod
    def wrong_values(cls, table: str, column: str, found: object, expected: str, where: str = "") -> Self:
        """Return the error for a column with invalid values."""
        at = where + ": " if where else ""
        shown = repr(found)
        if len(shown) > MOST_SHOWN:
            shown = f"{shown[:MOST_SHOWN]} and {len(shown) - MOST_SHOWN} more characters"
        return cls(f"{at}table {table}, column {column}: expected {expected}, found {shown}")

    @classmethod
    def contradictory(cls, column: str, rank: int, values: Iterable[object], where: str = "") -> Self:
        """Return the error for a rank with two values of something that it can only have one of."""
        at = where + ": " if where else ""
        return cls(f"{at}rank {rank} has several values of {column}: {', '.join(map(str, values))}")

    @classmethod
    def no_rows(cls, table: str, where: str = "") -> Self:
        """Return the error for a table without rows."""
        return cls(f"{where + ': ' if where else ''}table {table} has no rows")


def _sizes(given: Mapping[str, int]) -> str:
    """Return parallel sizes in words: pp 4 x tp 2."""
    return " x ".join(f"{name} {size}" for name, size in given.items())


def _beginning(head: bytes) -> str:
    """Return in words how an unrecognized file begins."""
    if not head:
        return "it is empty"
    is_saved = head.startswith(b"PK") and b"data.pkl" in head
    if is_saved or (len(head) > 1 and head[:1] == b"\x80" and 1 < head[1] <= MOST_PICKLE_PROTOCOL):
        return (
            "a pickle file, as torch.save writes; pickle files are not loaded: unpickling runs arbitrary code"
        )
    encoding = text_encoding(head)
    return f"it begins with {head[:12]!r}" if encoding is None else f"it is text in {encoding}"


MOST_PICKLE_PROTOCOL = 5
MOST_SHOWN = 80
"""Characters of a wrong value that a message repeats."""
