"""Large runs are stored once in the user's cache, and read from there while no file of them has changed.

    runs/4f2a.../lock               one process at a time stores
    runs/4f2a.../state.json         the files that the run was stored from, as they were then
    runs/4f2a.../run.stagescope     the stored run

Whether files have changed is decided by their sizes, times of modification and inodes: reading gigabytes to compare
checksums would take as long as storing them again. Nothing about the cache is an error: without it, runs are read
directly.

A large run that was stored without alignment is stored here once more with aligned clocks (aligned_copies.py), so that
it is analyzed like any other stored run. That run itself stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope import __version__
from stagescope.api.aligned_copies import store_aligned
from stagescope.api.code_checksums import STORING, checksum_of_code
from stagescope.api.live_training import is_running
from stagescope.api.reading import RunFacts, inputs_of, read_options
from stagescope.api.saved_reports import is_quick_to_analyze
from stagescope.api.stored_runs import other_facts, stated, stored_run_of
from stagescope.api.storing import store
from stagescope.ingest.discover import files_below
from stagescope.ingest.stored_run import fetch_parts, is_as_stored, read_manifest
from stagescope.model.stored_run import MANIFEST, VERSION
from stagescope.storage.cache_directory import (
    DIGITS,
    RUNS,
    cache_directory,
    describe,
    entries,
    free_space_for,
    is_off,
    make_private,
    most_bytes,
    remove,
    size_bytes,
    touch,
)
from stagescope.storage.locking import locked
from stagescope.vocabulary.counts import counted
from stagescope.vocabulary.errors import CommandError, InputError, OutputError
from stagescope.vocabulary.limits import checked_limits, limits_in_force
from stagescope.vocabulary.place_names import with_names
from stagescope.vocabulary.sizes import size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Paths = Sequence[str | os.PathLike[str]]

LARGE_BYTES = 2_000_000_000
"""Inputs of this size are stored in the cache, compressed ones expanded: about 25 million spans of recordings."""
PACKED = {".gz": 8, ".zst": 8}
"""How many times as large files expand to be, about."""
STORED_SHARE = 4
"""A stored run is smaller than this part of its recordings: it has 5.4 bytes per span, and these have 74."""
ANALYSIS_BYTES = 40
"""Temporary files of the analysis of a stored run, per span, which are beside it."""
DIRECT = frozenset({"stored", "parquet"})
"""Readers of what is read directly, because it is a table already."""
LIBRARIES = ("filelock", "pyarrow")
"""Of the extra `store`. Without them, nothing is stored."""
STATE, RUN = "state.json", "run.stagescope"


class Shown(NamedTuple):
    """What is called while a run is stored in the cache: with sentences for people, and with files done and all."""

    on_notice: Callable[[str], object]
    on_progress: Callable[[int, int], object] | None = None


class Input(NamedTuple):
    """Paths and keywords for `read`."""

    paths: Paths
    facts: RunFacts


class _Files(NamedTuple):
    """The files that a run is read from, how large they are without compression, and what storing it may need.

    `stored` is the directory of a run that was stored without alignment, None for any other input.
    """

    files: list[Path]
    size_bytes: int
    need_bytes: int
    stored: Path | None = None


def cached_input(paths: Paths, facts: RunFacts, shown: Shown, *, align: bool = True) -> Input:
    """Return what to read instead of `paths`: if they are large, the run in the cache, which is stored now if need be.

    Of a stored run that is the one with aligned clocks, if it was stored without alignment and is analyzed in ranges.

    Returns the same paths and facts for anything that is read directly: what is not large, any other stored run, or
    some steps of one, a table, a training that is running, without the extra ``store``, and where the cache is off or
    cannot be written to. Raises InputError and UsageError as `read` does.
    """
    found = _large_files(paths, facts, align=align)
    if found is None:
        return Input(paths, facts)
    key = _key(found.files, facts, align=align)
    try:
        entry = cache_directory() / RUNS / key
    except RuntimeError:  # a user without a home directory
        return Input(paths, facts)
    try:
        run = _stored(entry, found, Input(paths, facts), shown, align=align)
    except (OSError, OutputError, CommandError, InputError) as reason:
        if isinstance(reason, InputError) and found.stored is None:
            raise
        remove(entry)  # a damaged file is a diagnostic, which reading everything adds
        text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)
        shown.on_notice(f"read without the cache: {text}")
        return Input(paths, facts)
    if run is None:
        return Input(paths, facts)
    kept: RunFacts = {"steps": facts.get("steps"), "limits": facts.get("limits")}
    return Input([run], kept)


def _large_files(paths: Paths, facts: RunFacts, *, align: bool) -> _Files | None:
    """Return the files of a run that belongs into the cache; None for any other."""
    if is_off() or not all(map(find_spec, LIBRARIES)) or not _may_be_large(paths, align=align):
        return None
    options = read_options(**facts)
    with limits_in_force(checked_limits(facts.get("limits"))):
        inputs = inputs_of(paths, is_mapped=options.mapping is not None)
        directory = stored_run_of(inputs)
    if directory is not None:
        return _files_to_align(directory, facts) if align else None
    if DIRECT.intersection(reader.name for reader in inputs.files):
        return None
    files = [file for group in inputs.files.values() for file in group]
    expanded_bytes = sum(map(_expanded_bytes, files))
    if expanded_bytes < LARGE_BYTES or is_running(*paths):
        return None
    mapping = facts.get("mapping")
    if mapping is not None and Path(mapping).is_file():
        files.append(Path(mapping))
    return _Files(files, expanded_bytes, expanded_bytes // STORED_SHARE)


def _files_to_align(directory: Path, facts: RunFacts) -> _Files | None:
    """Return the files of a stored run that is stored again with aligned clocks; None for any other.

    A run whose files or sources have changed is read directly, which states what is wrong, and so are some of its
    steps, whose clocks are aligned with what happened in these.
    """
    manifest = read_manifest(directory)
    if manifest.aligned or is_quick_to_analyze(manifest):
        return None
    if (
        facts.get("steps") is not None
        or other_facts(manifest, facts)
        or not is_as_stored(directory, manifest)
    ):
        return None
    fetch_parts(directory, manifest)
    files = [directory / name for name in (MANIFEST, *(part.path for part in manifest.parts))]
    need_bytes = manifest.size_bytes + ANALYSIS_BYTES * manifest.span_count
    return _Files(files, manifest.size_bytes, need_bytes, directory)


def _may_be_large(paths: Paths, *, align: bool) -> bool:
    """Return whether the files below some paths may be large; what is on an object store is known after fetching it.

    The manifest of a stored run that is to be aligned shows it: files_below finds no other file of such a run.
    """
    total = 0
    for path in map(Path, paths):
        if not path.exists():
            return True
        for file in [path] if path.is_file() else files_below(path):
            total += _expanded_bytes(file)
            if total >= LARGE_BYTES or (align and file.name == MANIFEST):
                return True
    return False


def _expanded_bytes(file: Path) -> int:
    try:
        return file.stat().st_size * PACKED.get(file.suffix.lower(), 1)
    except OSError:
        return 0


def _key(files: list[Path], facts: RunFacts, *, align: bool) -> str:
    """Return the name of the entry: of the same files, read the same way by the same code, whatever is in them."""
    how = {name: value for name, value in stated(facts).items() if name != "steps"}
    # A run that was stored with other limits may have been refused, or read differently, with these.
    limits = {name: value for name, value in checked_limits(facts.get("limits")).items() if name != "query"}
    parts = [
        __version__,
        str(VERSION),
        checksum_of_code(STORING),
        json.dumps([how, align, limits], sort_keys=True),
    ]
    sum_ = hashlib.sha256("\0".join(parts).encode(errors="surrogatepass"))
    for file in files:
        sum_.update(f"\0{file.resolve()}".encode(errors="surrogatepass"))
    return sum_.hexdigest()[:DIGITS]


def _stored(entry: Path, found: _Files, given: Input, shown: Shown, *, align: bool) -> Path | None:
    """Return the stored run of an entry, after storing it unless it is there; None if there is no space for it.

    Raises OSError, OutputError and CommandError if it cannot be stored, and InputError if it cannot be read.
    """
    run = make_private(entry) / RUN
    wait = partial(shown.on_notice, "waiting for another process that stores this run in the cache")
    with locked(entry, wait):
        state = _state(found.files)
        if _is_current(entry, state):
            touch(entry)
            shown.on_notice(f"read from the cache, because no file has changed: {run}")
            return run
        need_bytes = found.need_bytes
        free_space_for(need_bytes, entry)
        others = [each for each in entries() if each != entry]
        most = most_bytes(sum(map(size_bytes, others)))
        if need_bytes > min(most, shutil.disk_usage(entry).free):
            shown.on_notice(f"read without the cache: the run may need {size_text(need_bytes)} of it")
            remove(entry)
            return None
        what = f"{counted(len(found.files), 'file')} of {size_text(found.size_bytes)}"
        shown.on_notice(f"storing {what} once in the cache, from which the run is read afterwards: {run}")
        (entry / STATE).unlink(missing_ok=True)
        describe(entry, with_names(", ".join(str(os.fspath(path)) for path in given.paths)))
        if found.stored is not None:
            store_aligned(found.stored, out=run, on_progress=shown.on_progress)
        else:
            facts = given.facts.copy()
            facts.pop("steps", None)
            store(*given.paths, out=run, align=align, force=True, on_progress=shown.on_progress, **facts)
        (entry / STATE).write_text(json.dumps(state), encoding="utf-8")
        return run


def _state(files: list[Path]) -> list[list[Any]]:
    """Return what is compared to find out whether files have changed. Raises InputError."""
    found = []
    for file in files:
        try:
            facts = file.stat()
        except OSError as reason:
            raise InputError.cannot_read(file, reason) from reason
        found.append([facts.st_size, facts.st_mtime_ns, facts.st_ino])
    return found


def _is_current(entry: Path, state: list[list[Any]]) -> bool:
    """Return whether an entry has a run that was stored from files in this state, and is whole."""
    try:
        before = json.loads((entry / STATE).read_text(encoding="utf-8"))
        manifest = read_manifest(entry / RUN)
        sizes = {part.path: (entry / RUN / part.path).stat().st_size for part in manifest.parts}
    except (OSError, ValueError, InputError):
        return False
    return before == state and all(sizes[part.path] == part.size_bytes for part in manifest.parts)
