"""Find the files that a call names, and the reader of each."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagescope.ingest.natural_order import natural_key
from stagescope.ingest.reader import HEAD_BYTES, Reader
from stagescope.ingest.streams import open_stream
from stagescope.model.diagnostics import Diagnostic
from stagescope.model.stored_run import JOURNAL, MANIFEST
from stagescope.record.format import KERNEL_FOLDER, SUFFIX
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from stagescope.ingest.registry import Registry


PSEUDO_FILE_SYSTEMS = frozenset(
    {
        *(
            "bpf",
            "cgroup",
            "cgroup2",
            "configfs",
            "debugfs",
            "devpts",
            "efivarfs",
            "fusectl",
            "mqueue",
            "proc",
        ),
        *("pstore", "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs"),
    }
)
"""File systems whose files are made up by the kernel when they are read. A search of them may never end: /proc has a
link to the root of all file systems for every thread."""
MOUNTS = Path("/proc/self/mountinfo")


class Inputs(NamedTuple):
    """The files of one call by reader, those that the caller named explicitly, and diagnostics for skipped files."""

    files: dict[Reader, tuple[Path, ...]]
    named: frozenset[Path]
    diagnostics: tuple[Diagnostic, ...]

    @property
    def file_count(self) -> int:
        """Number of files to read."""
        return sum(map(len, self.files.values()))


def find_inputs(paths: Iterable[str | os.PathLike[str]], registry: Registry) -> Inputs:
    """Return the files that `paths` mean, each under the reader that recognizes its content.

    Directories are searched recursively for files that match the patterns of a reader, in natural order (rank2 before
    rank10), except for the kernel's own such as /proc. A file that is reached twice counts once. Raises InputError for
    a path that does not exist, cannot be opened or is a pipe, socket or device, for an explicitly named file that no
    reader recognizes, and for a directory of the kernel or with nothing to read. Where no name matches, files with the
    suffixes of readers are found by their content. What a directory search found by its name but cannot be read as a
    recording or trace is skipped with a diagnostic.
    """
    readers, diagnostics = registry
    found: dict[Path, Reader] = {}
    named: set[Path] = set()
    skipped: list[Diagnostic] = []
    for path in map(Path, paths):
        if _is_stored_run(path):
            found[path / MANIFEST] = _reader_of_run(path, readers)
            named.add(path / MANIFEST)
        elif path.is_dir():
            files, unknown = _search(path, readers)
            found |= files
            skipped += unknown
        else:
            found[path] = _reader_of(path, readers)
            named.add(path)
    return Inputs(_by_reader(found), frozenset(named), (*diagnostics, *skipped))


def _pseudo_devices() -> dict[int, str]:
    """Return the device numbers of the kernel's own file systems, with their types; empty on other systems.

    The format is that of proc_pid_mountinfo(5): the device is the third field, the type the first one after a hyphen.
    """
    found: dict[int, str] = {}
    if sys.platform == "win32":
        return found
    with suppress(OSError):
        for line in MOUNTS.read_text(errors="replace").splitlines():
            fields = line.split()
            kind = fields[fields.index("-") + 1]
            if kind in PSEUDO_FILE_SYSTEMS:
                found[os.makedev(*map(int, fields[2].split(":")))] = kind
    return found


def _device_of(path: Path) -> int | None:
    try:
        return path.stat().st_dev
    except OSError:
        return None


def _search(directory: Path, readers: Sequence[Reader]) -> tuple[dict[Path, Reader], list[Diagnostic]]:
    """Return the readable files in and below a directory, and diagnostics for matching files that no reader knows."""
    if kind := _pseudo_devices().get(_device_of(directory) or 0):
        raise InputError.pseudo_file_system(directory, kind)
    patterns = tuple(dict.fromkeys(pattern for reader in readers for pattern in reader.patterns))
    patterns = (*patterns, MANIFEST, JOURNAL)
    below = (file for file in _files_below(directory) if _matches(file.name, patterns))
    found: dict[Path, Reader] = {}
    unknown: list[tuple[Path, InputError]] = []
    stored: list[Path] = []
    for file in sorted(below, key=lambda file: natural_key(str(file.relative_to(directory)))):
        if file.name in {MANIFEST, JOURNAL}:
            stored.append(file.parent)
            continue
        try:
            found[file] = _reader_of(file, readers)
        except InputError as error:
            if os.path.lexists(file):  # a running training deletes the oldest files of a bounded recording
                unknown.append((file, error))
    others = _found_by_content(directory, readers, set(found))
    if not found and not others:
        raise _nothing_found(directory, readers, unknown, stored)
    if (
        not found
    ):  # names of traces are anyone's choice; next to files with usual names, others are other traces
        return others, []
    beside = [f"{run} is a stored run, which is read when it is named itself" for run in stored]
    notes = [
        Diagnostic("warning", f"not read: {reason}", str(directory), code="input.not_read")
        for reason in beside
    ]
    notes = [*(_not_read(file, directory, reason) for file, reason in unknown), *notes]
    if (
        not found
    ):  # names of traces are anyone's choice; next to files with usual names, others are other traces
        return others, notes
    if others:
        first = f"not read: {next(iter(others))} is a trace, but its name is unlike those of the files that were read"
        notes.append(Diagnostic("info", first, str(directory), count=len(others), code="input.not_read"))
    return found, notes


def _not_read(path: Path, directory: Path, reason: InputError) -> Diagnostic:
    """Return the diagnostic of a file that no reader recognizes: an error if its compressed data are damaged."""
    if _is_damaged(path):
        return Diagnostic("error", f"not read: {reason}", str(path), code="file.unreadable")
    return Diagnostic("warning", f"not read: {reason}", str(directory), code="input.not_read")


def _is_damaged(path: Path) -> bool:
    try:
        with open_stream(path) as file:
            file.read(HEAD_BYTES)
    except InputError:
        return False
    return file.damage is not None


def _found_by_content(
    directory: Path, readers: Sequence[Reader], known: Collection[Path]
) -> dict[Path, Reader]:
    """Return the files whose content a reader looks into whatever their name, without those that are `known`."""
    found: dict[Path, Reader] = {}
    suffixes = tuple(dict.fromkeys(suffix for reader in readers for suffix in reader.suffixes))
    wanted = (
        file for file in _files_below(directory) if file.name.lower().endswith(suffixes) and file not in known
    )
    interested = [reader for reader in readers if reader.suffixes]
    for file in sorted(wanted, key=lambda file: natural_key(str(file.relative_to(directory)))):
        try:
            found[file] = _reader_of(file, interested)
        except InputError:  # noqa: PERF203 - most files with such names are none of ours
            continue
    return found


def _nothing_found(
    directory: Path,
    readers: Sequence[Reader],
    unknown: Sequence[tuple[Path, InputError]],
    stored: Sequence[Path],
) -> InputError:
    """Return the error for a directory without a readable file."""
    if unknown:
        return unknown[0][1]
    if stored:
        return InputError.only_stored_runs(directory, stored[0])
    return InputError.nothing_to_read(directory, [reader.name for reader in readers])


def _is_stored_run(path: Path) -> bool:
    """Return whether a path is the directory of a stored run, complete or not."""
    return any((path / name).is_file() for name in (MANIFEST, JOURNAL))


def _reader_of_run(directory: Path, readers: Sequence[Reader]) -> Reader:
    if not (directory / MANIFEST).is_file():
        raise InputError.unfinished_store(directory)
    return _reader_of(directory / MANIFEST, readers)


def _files_below(directory: Path) -> Iterator[Path]:
    """Yield every file in and below a directory, and of a stored run its manifest or journal alone.

    A directory reached twice through links is searched once, and the kernel's own are not searched.
    """
    seen: set[str] = set()
    pseudo = _pseudo_devices()
    for folder, below, files in os.walk(directory, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen or _device_of(Path(real)) in pseudo:
            below.clear()
            continue
        seen.add(real)
        if any(name.endswith(SUFFIX) for name in files):  # the same ranks again, in another format
            below[:] = [name for name in below if not name.startswith(KERNEL_FOLDER)]
        marks = [name for name in (MANIFEST, JOURNAL) if name in files]
        if marks:  # a stored run: its tables would be read as other recordings of the same ranks
            below.clear()
        below.sort(key=natural_key)
        yield from (Path(folder, name) for name in marks[:1] or files)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in patterns)


def _reader_of(path: Path, readers: Sequence[Reader]) -> Reader:
    """Return the reader that recognizes the content of a file."""
    require_text_name(path)
    with open_stream(path) as file:
        head = file.read(HEAD_BYTES)
    for reader in readers:
        if reader.recognizes(path, head):
            return reader
    if file.damage:
        raise InputError.damaged(path, file.damage)
    raise InputError.not_recognized(path, (reader.name for reader in readers), head)


def require_text_name(path: Path) -> None:
    """Raise InputError for a path that no table can store: the system allows names of any bytes, UTF-8 does not."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError.name_not_text(path) from None


def _by_reader(found: dict[Path, Reader]) -> dict[Reader, tuple[Path, ...]]:
    """Return the files of each reader, every file once regardless of how many paths lead to it."""
    once = {path.resolve(): path for path in reversed(found)}
    files: dict[Reader, tuple[Path, ...]] = {}
    for path, reader in found.items():
        if once[path.resolve()] == path:
            files[reader] = (*files.get(reader, ()), path)
    return files
