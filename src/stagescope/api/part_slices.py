"""Slices of a part of a run: its rows of some steps, read and stored like a part of its own.

A pipeline that was recorded for long has more spans than a worker may have in memory. Its recordings are therefore read
one after the other, and divided by steps into files beside the stored run; each slice is then read from these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stagescope.api.detached_tables import DetachedObject, read_object, write_object
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run.partition_files import UNENCODED
from stagescope.ingest.recording.frames import Columns, no_columns
from stagescope.ingest.recording.step_slices import sliced
from stagescope.ingest.recording.survey import contents_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stagescope.ingest.recording.decisions import Decisions
    from stagescope.ingest.recording.frames import Contents
    from stagescope.ingest.recording.survey import Files
    from stagescope.vocabulary.steps import StepRange


class SlicedFile(NamedTuple):
    """The content of a slice of one recording: its spans in a file, and everything else in another one."""

    spans: Path
    others: DetachedObject


class Slice(NamedTuple):
    """Some steps of a part; `files` has the content of each of its recordings, empty until the part was divided."""

    number: int
    steps: StepRange
    files: tuple[SlicedFile, ...] = ()


class Undivided(NamedTuple):
    """A part that is to be divided at these steps, and the directory that its slices wait in."""

    name: str
    decisions: Decisions
    files: tuple[Files, ...]
    firsts: tuple[int, ...]
    directory: Path


def divide_part(item: Undivided) -> list[tuple[SlicedFile, ...]]:
    """Write the slices of a part, and return the files of each. Raises OSError, and InputError as reading does."""
    folder = item.directory / UNENCODED / f"{item.name},slices".replace(" ", "-")
    make_directory(folder)
    of_process = [
        [
            _written(contents, folder / f"{process.rank}-{number}")
            for number, contents in enumerate(sliced(contents_of(process, files), item.firsts))
        ]
        for process, files in zip(item.decisions.processes, item.files, strict=True)
    ]
    return list(zip(*of_process, strict=True))


def read_slice(decisions: Decisions, files: Sequence[SlicedFile]) -> list[Contents]:
    """Return the content of each recording of a part, of the steps of one slice. Raises OSError."""
    return [_read(each) for _, each in zip(decisions.processes, files, strict=True)]


def _written(contents: Contents, place: Path) -> SlicedFile:
    spans = place.with_name(f"{place.name}.arrow")
    pl.DataFrame(contents.spans.arrays).write_ipc(spans, compression="lz4")
    others = write_object(replace(contents, spans=no_columns()), place.with_name(f"{place.name}.contents"))
    return SlicedFile(spans, others)


def _read(file: SlicedFile) -> Contents:
    rows = pl.read_ipc(file.spans)
    spans = Columns({name: rows[name].to_numpy() for name in rows.columns}, rows.height)
    contents: Contents = read_object(file.others)
    return replace(contents, spans=spans)
