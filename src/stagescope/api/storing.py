"""Store a run as a directory of Parquet files that every command reads, and other programs too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope import __version__
from stagescope.api.reading import check_count, clock_json, clock_report, inputs_of, read, read_options
from stagescope.api.stored_runs import stated
from stagescope.execution import executor_for
from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run import Stored, WriteOptions, locked, write_stored_run
from stagescope.exporters.stored_run.parquet import checksum_of
from stagescope.ingest.stored_run import read_manifest
from stagescope.model.stored_run import FORMAT, JOURNAL, LOCK, MANIFEST, VERSION, Manifest, Source
from stagescope.vocabulary.errors import InputError, OutputError
from stagescope.vocabulary.limits import checked_limits, limits_in_force

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from typing_extensions import Unpack

    from stagescope.api.reading import RunFacts
    from stagescope.model.stored_run import Part

OWN = frozenset({MANIFEST, JOURNAL, LOCK})


def store(
    *paths: str | os.PathLike[str],
    out: str | os.PathLike[str],
    align: bool = True,
    force: bool = False,
    workers: int | None = None,
    cluster: str | None = None,
    on_progress: Callable[[int, int], object] | None = None,
    on_written: Callable[[Part], object] | None = None,
    on_notice: Callable[[str], object] = str,
    **facts: Unpack[RunFacts],
) -> Stored:
    """Store a run in the directory `out`, and return what was stored: path, manifest, files written and kept.

    `paths`, `align`, `on_progress` and `facts` are those of `read`, which afterwards reads the directory like a
    recording. If `out` has this run already, files that are missing or damaged are written again, and the others
    are kept; the same holds after storing was interrupted. `force` replaces a run that was stored from other files, or
    with other facts.

    `workers` processes write the files, by default this one alone. `cluster` names a cluster that does: ``"local:4"``,
    ``"tcp://HOST:PORT"``, ``"slurm"`` or ``"ray"``; its workers need the directory `out` under the same path. What is
    stored does not depend on them. Reading and alignment happen in this process.

    `on_progress` is called as by `read`, `on_written` with each file that was written, and `on_notice` with what
    happens to workers, for people.

    docs/scale.md describes the files, which are Parquet with one partition per pipeline and range of steps.

    Raises InputError and UsageError as `read` does; OutputError if `out` is something else than a stored run, has
    another run and `force` is not set, is being written by another process, or cannot be written; CommandError if the
    libraries of the extra ``store`` are missing, or the cluster cannot be reached; UsageError for an unknown `cluster`.
    """
    if workers is not None:
        check_count("workers", workers)
    directory = Path(out)
    with limits_in_force(checked_limits(facts.get("limits"))):
        sources = _sources(paths, directory, facts)
    wanted = Manifest(FORMAT, VERSION, f"stagescope {__version__}", sources, stated(facts), align)
    _make_place(directory)
    with locked(directory):
        before = _parts_before(directory, wanted, force=force)
        timeline = read(*paths, align=align, on_progress=on_progress, **facts)
        alignment = clock_json(clock_report(timeline)) if align else None
        wanted = replace(wanted, parts=before, alignment=alignment)
        with executor_for(
            1 if workers is None and cluster is None else workers, cluster, on_notice
        ) as executor:
            options = WriteOptions(executor=executor, on_written=on_written)
            return write_stored_run(timeline, directory, wanted, options)


def _sources(
    paths: tuple[str | os.PathLike[str], ...], directory: Path, facts: RunFacts
) -> tuple[Source, ...]:
    """Return the files that the run is read from. Raises InputError for those of the stored run itself."""
    is_mapped = read_options(**facts).mapping is not None
    files = [file for group in inputs_of(paths, is_mapped=is_mapped).files.values() for file in group]
    mapping = facts.get("mapping")
    if mapping is not None and Path(mapping).is_file():
        files.append(Path(mapping))
    own = directory.resolve()
    for file in files:
        if file.name == MANIFEST:
            raise InputError.already_stored(file.parent)
        if own in file.resolve().parents:
            raise InputError.source_in_output(file, directory)
    return tuple(_source(file) for file in files)


def _source(file: Path) -> Source:
    try:
        facts = file.stat()
        return Source(str(file.resolve()), facts.st_size, facts.st_mtime_ns, checksum_of(file))
    except OSError as reason:
        raise InputError.cannot_read(file, reason) from reason


def _make_place(directory: Path) -> None:
    """Create the directory, unless it is a stored run or empty. Raises OutputError for anything else."""
    try:
        if directory.exists() and not directory.is_dir():
            raise OutputError.no_stored_run(directory)
        make_directory(directory)
        names = {entry.name for entry in directory.iterdir()}
    except OSError as reason:
        raise OutputError.cannot_write(directory, reason) from reason
    if names and not names & OWN:
        raise OutputError.no_stored_run(directory)


def _parts_before(directory: Path, wanted: Manifest, *, force: bool) -> tuple[Part, ...]:
    """Return the parts of the run that is in the directory, if it is the wanted one.

    Raises OutputError for another run without `force`.
    """
    if not (directory / MANIFEST).is_file():
        return ()
    try:
        found = read_manifest(directory)
    except InputError:
        if force:
            return ()
        raise
    difference = _difference(found, wanted)
    if difference and not force:
        raise OutputError.other_sources(directory, difference)
    return () if difference else found.parts


def _difference(found: Manifest, wanted: Manifest) -> str:
    """Return how the stored run differs from the one to store; an empty text for the same files and facts."""
    before = {source.path: source.checksum for source in found.sources}
    now = {source.path: source.checksum for source in wanted.sources}
    counts = {
        "new": len(now.keys() - before.keys()),
        "gone": len(before.keys() - now.keys()),
        "changed": sum(before[path] != now[path] for path in before.keys() & now.keys()),
    }
    words = [
        f"{count} {'file is' if count == 1 else 'files are'} {name}"
        for name, count in counts.items()
        if count
    ]
    if found.facts != wanted.facts:
        words.append("it was stored with other options")
    if found.aligned != wanted.aligned:
        words.append(f"its clocks are {'' if found.aligned else 'not '}aligned")
    return ", ".join(words)
