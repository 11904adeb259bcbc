"""Write a Timeline as a stored run: each file complete or absent, and the manifest last."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from stagescope.exporters.new_files import make_directory, temporary_file
from stagescope.exporters.stored_run.journal import Journal, is_intact
from stagescope.exporters.stored_run.parquet import checksum_of, write_parquet
from stagescope.exporters.stored_run.partitions import MOST_SPANS, divide
from stagescope.model.stored_run import MANIFEST, Part, manifest_text
from stagescope.model.tables import TABLES
from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import polars as pl

    from stagescope.exporters.stored_run.partitions import Partition
    from stagescope.model import Timeline
    from stagescope.model.stored_run import Manifest


@dataclass(frozen=True)
class Stored:
    """What was stored: the manifest, how many files of it were written, and how many were there already.

    `diagnostics` is the table of the run.
    """

    path: Path
    manifest: Manifest
    written: int
    kept: int
    diagnostics: pl.DataFrame

    @property
    def is_partial(self) -> bool:
        """Whether data are known to be missing: an error row in diagnostics."""
        return "error" in self.diagnostics["severity"]


def write_stored_run(
    timeline: Timeline,
    directory: Path,
    manifest: Manifest,
    *,
    most_spans: int = MOST_SPANS,
    on_written: Callable[[Part], object] | None = None,
) -> Stored:
    """Store a timeline in a directory, whose lock the caller holds, and return what was stored.

    `manifest` has the sources and facts of the run, and the parts of an earlier call with the same ones, if any: files
    that are intact are kept, and others of an earlier run are removed. If the process is killed, the next call goes on
    with what is missing. Raises OutputError if the operating system refuses to write, for instance because the disk is
    full.
    """
    journal = Journal(directory, manifest)
    parts: list[Part] = []
    written = 0
    try:
        journal.begin(part for part in manifest.parts if is_intact(directory, part))
        (directory / MANIFEST).unlink(missing_ok=True)
        for partition in divide(timeline, most_spans):
            part = journal.completed(partition.path)
            if part is None:
                part = _write(partition, directory)
                journal.add(part)
                written += 1
            parts.append(part)
            if on_written is not None:
                on_written(part)
        _remove_others(directory, parts)
        complete = replace(manifest, parts=tuple(parts))
        _write_manifest(complete, directory)
        journal.remove()
    except OSError as reason:
        raise OutputError.not_stored(directory, reason) from reason
    return Stored(directory, complete, written, len(parts) - written, timeline.diagnostics)


def _write(partition: Partition, directory: Path) -> Part:
    """Write the file of a partition, and return its part of the manifest. Raises OSError."""
    path = directory / partition.path
    make_directory(path.parent)
    with temporary_file(path) as unfinished:
        write_parquet(partition.rows, unfinished)
        _sync(unfinished)
        size_bytes, checksum = unfinished.stat().st_size, checksum_of(unfinished)
        unfinished.replace(path)
    steps = partition.rows["step"] if partition.pipeline is not None else None
    first, last = (None, None) if steps is None else (steps.min(), steps.max())
    return Part(
        partition.table.name,
        partition.path,
        partition.rows.height,
        size_bytes,
        checksum,
        partition.pipeline,
        partition.step_range,
        first if isinstance(first, int) else None,
        last if isinstance(last, int) else None,
    )


def _write_manifest(manifest: Manifest, directory: Path) -> None:
    with temporary_file(directory / MANIFEST) as unfinished:
        unfinished.write_text(manifest_text(asdict(manifest)), encoding="utf-8")
        _sync(unfinished)
        unfinished.replace(directory / MANIFEST)


def _remove_others(directory: Path, parts: list[Part]) -> None:
    """Remove the files of runs that were stored here before, and the folders that are empty without them."""
    kept = {directory / part.path for part in parts}
    found = [*(directory / f"{table.name}.parquet" for table in TABLES)]
    for table in TABLES:
        found += (directory / table.name).glob("pipeline=*/step_range=*/part.parquet")
    for path in found:
        if path in kept:
            continue
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            path.parent.rmdir()
            path.parent.parent.rmdir()


def _sync(path: Path) -> None:
    """Write a file to the disk, so that no rename makes it final before its content."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
