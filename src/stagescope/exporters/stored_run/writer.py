"""Write a Timeline as a stored run: each file complete or absent, and the manifest last."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from stagescope.execution import InThisProcess
from stagescope.exporters.new_files import UNFINISHED
from stagescope.exporters.stored_run.journal import Journal, is_intact
from stagescope.exporters.stored_run.pages import remove_pages
from stagescope.exporters.stored_run.partition_files import (
    UNENCODED,
    complete_file,
    unwritten,
    write_partition,
)
from stagescope.exporters.stored_run.partitions import MOST_SPANS, divide
from stagescope.model.stored_run import MANIFEST, Part, manifest_checksum, manifest_text
from stagescope.model.tables import TABLES
from stagescope.vocabulary.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import polars as pl

    from stagescope.execution import Executor
    from stagescope.exporters.stored_run.partition_files import Unwritten
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


@dataclass(frozen=True)
class WriteOptions:
    """How a run is stored: the most spans of a partition, who writes the files, and what is called with each one."""

    most_spans: int = MOST_SPANS
    executor: Executor = field(default_factory=InThisProcess)
    on_written: Callable[[Part], object] | None = None


def write_stored_run(
    timeline: Timeline, directory: Path, manifest: Manifest, options: WriteOptions | None = None
) -> Stored:
    """Store a timeline in a directory, whose lock the caller holds, and return what was stored.

    `manifest` has the sources and facts of the run, and the parts of an earlier call with the same ones, if any: files
    that are intact are kept, and others of an earlier run are removed. If the process is killed, the next call goes on
    with what is missing. Raises OutputError if the operating system refuses to write, for instance because the disk is
    full.
    """
    options = options or WriteOptions()
    with storing(directory, manifest, options.on_written) as store:
        every = _Partitions(
            divide(timeline, options.most_spans),
            directory.absolute(),
            store.journal,
            by_file=not options.executor.takes_large,
        )
        for part in options.executor.map(write_partition, every.missing()):
            store.add(part)
            every.done[part.path] = part
        return store.finish(manifest, list(every.done.values()), timeline.diagnostics)


@dataclass
class Store:
    """A run that is being stored: what is complete is in the journal, and the manifest is written last."""

    directory: Path
    journal: Journal
    on_written: Callable[[Part], object] | None = None
    written: int = 0

    def add(self, part: Part) -> None:
        """Note a file that was written. Raises OSError."""
        self.journal.add(part)
        self.written += 1
        if self.on_written is not None:
            self.on_written(part)

    def finish(self, manifest: Manifest, parts: list[Part], diagnostics: pl.DataFrame) -> Stored:
        """Write the manifest with these parts, remove everything else, and return what was stored.

        The page of the same run stays. Raises OSError.
        """
        shutil.rmtree(self.directory / UNENCODED, ignore_errors=True)
        _remove_others(self.directory, parts)
        complete = replace(manifest, parts=tuple(parts))
        run = _write_manifest(complete, self.directory)
        remove_pages(self.directory, run)
        self.journal.remove()
        return Stored(self.directory, complete, self.written, len(parts) - self.written, diagnostics)


@contextmanager
def storing(
    directory: Path, manifest: Manifest, on_written: Callable[[Part], object] | None = None
) -> Iterator[Store]:
    """Yield the store of a directory, whose lock the caller holds; see write_stored_run.

    If the block raises InputError before it has written a file, the directory is left as it was, without what waits.
    Raises OutputError if the operating system refuses to write.
    """
    journal = Journal(directory, manifest)
    store = Store(directory, journal, on_written)
    before: bytes | None = None
    try:
        with suppress(FileNotFoundError):
            before = (directory / MANIFEST).read_bytes()
        journal.begin(part for part in manifest.parts if is_intact(directory, part))
        (directory / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(directory / UNENCODED, ignore_errors=True)
        yield store
    except InputError:  # the run cannot be stored, or not with these options
        shutil.rmtree(directory / UNENCODED, ignore_errors=True)
        if not store.written:
            _leave(directory, journal, before)
        raise
    except OSError as reason:
        raise OutputError.not_stored(directory, reason) from reason


def _leave(directory: Path, journal: Journal, manifest: bytes | None) -> None:
    """Leave a directory in which nothing was written as it was, with this manifest of a stored run. Raises OSError."""
    if manifest is None:
        journal.remove_empty()
        return
    with complete_file(directory / MANIFEST) as unfinished:
        unfinished.write_bytes(manifest)
    journal.remove()


@dataclass
class _Partitions:
    """The partitions of a run, and the parts that are complete, in the order of the partitions."""

    partitions: Iterable[Partition]
    directory: Path
    journal: Journal
    by_file: bool
    done: dict[str, Part] = field(default_factory=dict)

    def missing(self) -> Iterator[Unwritten]:
        """Yield what has to be written; `done` keeps a place for it. Raises OSError."""
        for partition in self.partitions:
            part = self.journal.completed(partition.path, partition.rows.height)
            self.done[partition.path] = part  # type: ignore[assignment]  # None until it is written
            if part is None:
                yield unwritten(partition, self.directory, by_file=self.by_file)


def _write_manifest(manifest: Manifest, directory: Path) -> str:
    """Write the manifest, and return its checksum. Raises OSError."""
    facts = asdict(manifest)
    with complete_file(directory / MANIFEST) as unfinished:
        unfinished.write_text(manifest_text(facts), encoding="utf-8")
    return manifest_checksum(facts)


def _remove_others(directory: Path, parts: list[Part]) -> None:
    """Remove the files of runs that were stored here before, and the folders that are empty without them.

    Files that a killed process had begun to write are removed as well.
    """
    kept = {directory / part.path for part in parts}
    found = [*(directory / f"{table.name}.parquet" for table in TABLES), *directory.glob(UNFINISHED)]
    for table in TABLES:
        for pattern in (UNFINISHED, "part.parquet"):
            found += (directory / table.name).glob(f"pipeline=*/step_range=*/{pattern}")
    for path in found:
        if path in kept:
            continue
        path.unlink(missing_ok=True)
        with suppress(OSError):  # not empty
            path.parent.rmdir()
            path.parent.parent.rmdir()
