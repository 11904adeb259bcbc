"""Store a run as a directory of Parquet files that every command reads, and other programs too."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope import __version__
from stagescope.api.code_checksums import STORING, checksum_of_code
from stagescope.api.fetched_paths import require_shared, with_source_addresses
from stagescope.api.reading import check_count, clock_json, clock_report, inputs_of, read, read_options
from stagescope.api.stored_runs import stated
from stagescope.api.storing_parts import (
    FILES_AT_ONCE,
    StoreOptions,
    source_of,
    store_parts,
    survey_run,
    surveyed_files,
)
from stagescope.execution import checked_address, executor_for, memory_returned_soon
from stagescope.execution.spawning import core_count
from stagescope.exporters.new_files import make_directory, require_here
from stagescope.exporters.stored_run import Stored, WriteOptions, locked, storing, write_stored_run
from stagescope.ingest.memory_need import require_memory_for
from stagescope.ingest.processes import fitting_workers
from stagescope.ingest.recording.reader import READER as RECORDINGS
from stagescope.ingest.stored_run import read_manifest
from stagescope.model.stored_run import FORMAT, JOURNAL, LOCK, MANIFEST, VERSION, Manifest
from stagescope.vocabulary.errors import InputError, OutputError
from stagescope.vocabulary.limits import checked_limits, limits_in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Unpack

    from stagescope.api.reading import RunFacts
    from stagescope.execution import Executor
    from stagescope.ingest import Inputs
    from stagescope.ingest.reader import ReadOptions
    from stagescope.ingest.recording.survey import Surveyed
    from stagescope.model.stored_run import Part, Source

LARGE_BYTES = 200_000_000
"""Files of less than this are stored by one process unless the caller asks for more."""
LARGE_FOR_ONE_BYTES = 2_000_000_000
"""Files of more than this are stored by a process that is started for it, also if there is only one worker."""
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

    Recordings are read in parts of whole pipelines, so that memory does not grow with the run; other files are read
    at once. `workers` processes do that, by default one for each processor if the files are large. `cluster` names a
    cluster that does: ``"local:4"``, ``"tcp://HOST:PORT"``, ``"slurm"`` or ``"ray"``; its workers need the files and
    the directory `out` under the same paths. What is stored does not depend on them.

    `on_progress` is called as by `read`, `on_written` with each file that was written, and `on_notice` with what
    happens to workers, for people.

    docs/scale.md describes the files, which are Parquet with one partition per pipeline and range of steps.

    Raises InputError and UsageError as `read` does; OutputError if `out` is something else than a stored run, has
    another run, or one that cannot be read, and `force` is not set, is being written by another process, or cannot be
    written; CommandError if the libraries of the extra ``store`` are missing, or the cluster cannot be reached;
    UsageError for an unknown `cluster`, and for one whose workers do not have what is fetched from an object store.
    """
    if workers is not None:
        check_count("workers", workers)
    if cluster is not None:
        checked_address(cluster)  # before anything is written
    if not os.fspath(out):
        raise OutputError.empty_path()
    directory = Path(out)
    options = read_options(**facts)
    require_shared(paths, cluster)
    require_here(directory)
    with (
        limits_in_force(checked_limits(facts.get("limits"))),
        memory_returned_soon(),  # otherwise, aligning clocks takes 0.2 GB more, and storing no less time
        ExitStack() as lock,
        ExitStack() as ending,
    ):
        executor = None
        if workers is not None and workers > 1 and cluster is None:
            executor = ending.enter_context(executor_for(workers, None, on_notice))
            executor.prepare(surveyed_files, _least_tasks(paths))  # meanwhile, this process looks for files
        inputs = inputs_of(paths, is_mapped=options.mapping is not None)
        files = _source_files(inputs, directory, facts)
        lock.enter_context(_place(directory))
        lock.enter_context(locked(directory))
        lock.push(partial(_unlock_unused, directory))
        if executor is None:
            count = workers if workers is not None or cluster is not None else _worker_count(files)
            is_large = _size_bytes(files) > LARGE_FOR_ONE_BYTES
            executor = ending.enter_context(executor_for(count, cluster, on_notice, is_large=is_large))
        how = StoreOptions(executor, on_progress, on_notice=on_notice)
        surveyed, known = _survey(inputs, options, how, directory)
        sources = with_source_addresses(_sources(files, known, executor))
        wanted = Manifest(FORMAT, VERSION, f"stagescope {__version__}", sources, stated(facts), align)
        wanted = replace(wanted, code=checksum_of_code(STORING))
        wanted = replace(wanted, parts=_parts_before(directory, wanted, force=force))
        if surveyed is not None and surveyed.whole is None:
            begin = partial(storing, directory, wanted, on_written)
            return store_parts(surveyed, inputs, options, how, (begin, wanted))
        if surveyed is not None:
            _require_memory(surveyed)
        timeline = read(*paths, align=align, on_progress=on_progress, **facts)
        alignment = clock_json(clock_report(timeline)) if align else None
        write = WriteOptions(executor=executor, on_written=on_written)
        return write_stored_run(timeline, directory, replace(wanted, alignment=alignment), write)


def _least_tasks(paths: Sequence[str | os.PathLike[str]]) -> int:
    """Return about how many tasks surveying takes at least: those of the files in the directories that are given."""
    with suppress(OSError):  # looking for files states what cannot be read
        return (
            sum(1 for folder in map(Path, paths) if folder.is_dir() for _ in folder.iterdir())
            // FILES_AT_ONCE
        )
    return 0


def _survey(
    inputs: Inputs, options: ReadOptions, how: StoreOptions, directory: Path
) -> tuple[Surveyed | None, list[Source]]:
    """Return what is known of recordings, and the files with their checksums; nothing for other inputs."""
    if set(inputs.files) != {RECORDINGS}:
        return None, []
    return survey_run(inputs.files[RECORDINGS], options, how, directory.absolute())


def _require_memory(surveyed: Surveyed) -> None:
    """Raise InputError if a run that cannot be divided needs more memory than there is."""
    spans = sum(process.facts.spans for process in surveyed.decisions.processes)
    is_of_files = surveyed.reason_of_files is not None
    require_memory_for(
        spans, InputError.indivisible_files if is_of_files else InputError.indivisible_without_steps
    )


def _size_bytes(files: list[Path]) -> int:
    """Return the size of all files that are there."""
    return sum(file.stat().st_size for file in files if file.exists())


def _worker_count(files: list[Path]) -> int:
    """Return how many processes store a run by default: one, unless reading takes longer than starting others.

    They are no more than memory holds.
    """
    return min(core_count(), fitting_workers()) if _size_bytes(files) > LARGE_BYTES else 1


def _source_files(inputs: Inputs, directory: Path, facts: RunFacts) -> list[Path]:
    """Return the files that the run is read from. Raises InputError for those of the stored run itself."""
    files = [file for group in inputs.files.values() for file in group]
    mapping = facts.get("mapping")
    if mapping is not None and Path(mapping).is_file():
        files.append(Path(mapping))
    own = directory.resolve()
    for file in files:
        if file.name == MANIFEST:
            raise InputError.already_stored(file.parent)
        if own in file.resolve().parents:
            raise InputError.source_in_output(file, directory)
    return files


def _in_batches(files: list[Path]) -> Iterator[list[Path]]:
    return (files[place : place + FILES_AT_ONCE] for place in range(0, len(files), FILES_AT_ONCE))


def _sources(files: list[Path], known: list[Source], executor: Executor) -> tuple[Source, ...]:
    """Return what the manifest states about all files, of which some are known."""
    by_path = {source.path: source for source in known}
    paths = [str(file.resolve()) for file in files]
    others = [file for file, path in zip(files, paths, strict=True) if path not in by_path]
    found = chain.from_iterable(executor.map(_sources_of, _in_batches(others)))
    by_path |= {source.path: source for source in found}
    return tuple(by_path[path] for path in paths if path in by_path)


def _sources_of(files: list[Path]) -> list[Source]:
    return [source_of(file) for file in files]


@contextmanager
def _place(directory: Path) -> Iterator[None]:
    """Create the directory, unless it is a stored run or empty. Raises OutputError for anything else.

    A new one in which nothing was stored is removed if the block ends with an exception.
    """
    is_new = not directory.exists()
    _make_place(directory)
    try:
        yield
    except BaseException:  # raised again, Ctrl-C as well
        if is_new:
            with suppress(OSError):  # not empty
                directory.rmdir()
        raise


def _unlock_unused(directory: Path, kind: type[BaseException] | None, *_: object) -> None:
    """Remove the lock of a directory in which nothing was stored because of an exception, while it is held."""
    with suppress(OSError):
        if kind is not None and [entry.name for entry in directory.iterdir()] == [LOCK]:
            (directory / LOCK).unlink()


def _make_place(directory: Path) -> None:
    try:
        str(directory.absolute()).encode()
    except UnicodeEncodeError:
        raise OutputError.name_not_text(directory) from None
    try:
        if os.path.lexists(directory) and not directory.is_dir():  # a link to nothing as well
            raise OutputError.no_stored_run(directory)
        make_directory(directory)
        names = {entry.name for entry in directory.iterdir()}
    except OSError as reason:
        raise OutputError.cannot_write(directory, reason) from reason
    if names and not names & OWN:
        raise OutputError.no_stored_run(directory)


def _parts_before(directory: Path, wanted: Manifest, *, force: bool) -> tuple[Part, ...]:
    """Return the parts of the run that is in the directory, if it is the wanted one and the same code stored it.

    Other code may have divided the run into other files, or read other rows: then all files are written again.
    Raises OutputError for another run, and for one whose manifest cannot be read, without `force`.
    """
    if not (directory / MANIFEST).is_file():
        return ()
    try:
        found = read_manifest(directory)
    except InputError as error:
        if force:
            return ()
        raise OutputError.unreadable_run(error) from error
    difference = _difference(found, wanted)
    if difference and not force:
        raise OutputError.other_sources(directory, difference)
    return () if difference or found.code != wanted.code else found.parts


def _difference(found: Manifest, wanted: Manifest) -> str:
    """Return how the stored run differs from the one to store; an empty text for the same files and facts."""
    before = {source.path: source for source in found.sources}
    now = {source.path: source for source in wanted.sources}
    counts = {
        "new": len(now.keys() - before.keys()),
        "gone": len(before.keys() - now.keys()),
        "changed": sum(_is_changed(before[path], now[path]) for path in before.keys() & now.keys()),
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


def _is_changed(before: Source, now: Source) -> bool:
    """Return whether a file has another content than before, or another size where its checksums are of two kinds."""
    kinds = [source.checksum.rpartition(":")[0] for source in (before, now)]
    if kinds[0] != kinds[1]:
        return before.size_bytes != now.size_bytes
    return before.checksum != now.checksum
