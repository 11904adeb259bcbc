"""Slices of a part of a run: its rows of some steps, or some time, read and stored like a part of its own.

A pipeline that was recorded for long has more spans than a worker may have in memory. Its recordings are therefore read
one after the other, and divided by steps into files beside the stored run; each slice is then read from these. Without
steps, they are divided by time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.api.detached_tables import DetachedObject, read_object, write_object
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run.partition_files import UNENCODED
from stagescope.ingest.recording.columns import Columns, concatenated, no_columns
from stagescope.ingest.recording.reader import SPANS_IN_MEMORY
from stagescope.ingest.recording.step_slices import Slices
from stagescope.ingest.recording.survey import contents_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.ingest.recording.decisions import Decisions
    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.process import Process
    from stagescope.ingest.recording.survey import Files
    from stagescope.vocabulary.steps import StepRange


class SlicedFile(NamedTuple):
    """The content of a slice of one recording: its spans in files, and everything else in another one."""

    spans: tuple[Path, ...]
    others: DetachedObject


class Slice(NamedTuple):
    """A slice of a part: `files` has the content of each of its recordings.

    Its `steps` are None if it was divided by time: it has no steps, and messages may begin in one slice and end in the
    next.
    """

    number: int
    steps: StepRange | None
    files: tuple[SlicedFile, ...]


class Undivided(NamedTuple):
    """A recording that is to be divided into so many `slices`, and the directory that these wait in.

    They begin with the steps `firsts`, except the first slice; without any, it is divided by time.
    """

    process: Process
    files: Files
    firsts: tuple[int, ...]
    slices: int
    directory: Path

    @property
    def name(self) -> str:
        """How messages name the recording."""
        return f"rank {self.process.rank}"


def divide_recording(item: Undivided) -> list[SlicedFile]:
    """Write the slices of a recording into files, and return those of each slice.

    Raises OSError, and InputError as reading does.
    """
    folder = item.directory / UNENCODED / f"slices-of-rank-{item.process.rank}"
    make_directory(folder)
    contents = contents_of(item.process, item.files, SPANS_IN_MEMORY)
    slices = Slices(contents, item.firsts, item.slices)
    spans: list[list[Path]] = [[] for _ in range(item.slices)]
    for number, rows in slices.spans():
        own = spans[number]
        own.append(folder / f"{number}-{len(own)}.arrow")
        pl.DataFrame(rows.arrays).write_ipc(own[-1], compression="lz4")
    return [
        SlicedFile(tuple(own), write_object(others, folder / f"{number}.contents"))
        for number, (own, others) in enumerate(zip(spans, slices.others(), strict=True))
    ]


def read_slice(decisions: Decisions, files: Sequence[SlicedFile]) -> list[Contents]:
    """Return the content of each recording of a part, of the steps of one slice. Raises OSError."""
    return [_read(each) for _, each in zip(decisions.processes, files, strict=True)]


def _read(file: SlicedFile) -> Contents:
    contents: Contents = read_object(file.others)
    return replace(contents, spans=concatenated([_columns(path) for path in file.spans] or [no_columns()]))


def _columns(path: Path) -> Columns:
    rows = pl.read_ipc(path)
    return Columns({name: rows[name].to_numpy() for name in rows.columns}, rows.height)
