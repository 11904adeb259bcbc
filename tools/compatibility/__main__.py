"""Compare the table of signatures with the releases on the package index, or rewrite it.

    python -m tools.compatibility check     each release that differs from the table is an error
    python -m tools.compatibility update    read what is missing, and everything if the declared points have changed

Without --all, `check` reads the releases that the table lacks and the newest that it has: files on an index do not
change. Repositories at a pinned commit are read from --sources, and left as they are without it. With --offline, the
releases of the table are read from --sources and the index is not asked. A new release is compared with the one before
it; if they are equal, that is not an error, so a patch release breaks nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .archives import read_archive, read_folder, write_folder
from .catalog import SOURCES, Source
from .registry import RegistryError, Release, UnreachableError, download, list_releases
from .schedules import unknown
from .signatures import Sources
from .table import FOLDER, Snapshot, Table, difference, read_table, take_snapshot, write_table

if TYPE_CHECKING:
    from collections.abc import Callable

FOLDERS_READ = "FOLDERS"
"""The file in a kept release that lists what was read of it, so that a release is read again when that changes."""


class Options(NamedTuple):
    """The options of a command."""

    reads_all: bool
    kept: Path | None
    is_offline: bool
    table: Path = FOLDER


def main(arguments: list[str] | None = None) -> int:
    """Return the exit status: 1 if the table and a release differ, 0 if not or if the index is not reachable."""
    parser = argparse.ArgumentParser(prog="compatibility", description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("check", "update"))
    parser.add_argument("names", nargs="*", metavar="SOURCE", help="only these; all by default")
    parser.add_argument("--all", action="store_true", help="read every release again")
    parser.add_argument(
        "--sources", type=Path, metavar="FOLDER", help="keep sources in FOLDER/SOURCE/VERSION"
    )
    parser.add_argument("--offline", action="store_true", help="read what --sources has, without an index")
    parser.add_argument("--table", type=Path, default=FOLDER, metavar="FOLDER", help="another table")
    given = parser.parse_intermixed_args(arguments)
    misspelled = set(given.names) - {source.name for source in SOURCES}
    if misspelled:
        parser.error(f"unknown source: {', '.join(sorted(misspelled))}")
    options = Options(given.all, given.sources, given.offline, given.table)
    command = check if given.command == "check" else update
    try:
        faults = [
            fault
            for source in SOURCES
            if not given.names or source.name in given.names
            for fault in _listed(command, source, options)
        ]
    except UnreachableError as error:
        report(f"registry not reachable: skipped ({error})")
        return 0
    report(*faults)
    return 1 if faults else 0


def report(*lines: str) -> None:
    """Print lines right away: a release can take a minute."""
    for line in lines:
        print(line, flush=True)  # noqa: T201  # the output of a script


def check(source: Source, options: Options) -> list[str]:
    """Return what differs between the table and the releases of a source."""
    table = read_table(source.name, options.table)
    faults = []
    if list(table.points) != source.points:
        faults.append(f"{source.name}: the declared points have changed: run update")
    available = _available(source, options)
    newest = list(table.releases)[-1:]
    for release in available:
        version = release.version
        known = table.releases.get(version)
        if known is not None and not options.reads_all and version not in newest:
            continue
        found = _read(source, release, options)
        before = known or _before(table, [each.version for each in available], version)
        lines = difference(before, found) + unknown(source.name, found)
        if known is None and lines:
            faults.append(f"{source.name} {version} is not in the table")
        elif known is None:
            report(
                f"{source.name} {version} is not in the table, and equal to the release before it: run update"
            )
        faults += [f"{source.name} {version}: {line}" for line in lines]
    if available:
        report(f"{source.name}: {len(available)} releases, {len(table.releases)} in the table")
    return faults


def update(source: Source, options: Options) -> list[str]:
    """Rewrite the table of a source. Returns no faults."""
    table = read_table(source.name, options.table)
    is_current = list(table.points) == source.points and not options.reads_all
    releases = dict(table.releases) if is_current else {}
    available = _available(source, options)
    for release in available:
        if release.version not in releases:
            releases[release.version] = _read(source, release, options)
            report(f"{source.name} {release.version}: read")
    if available:
        write_table(source.name, Table(source.points, releases), options.table)
    return []


def _listed(command: Callable[[Source, Options], list[str]], source: Source, options: Options) -> list[str]:
    """Return the faults of a source; none if the index does not have it."""
    try:
        return command(source, options)
    except UnreachableError:
        raise
    except RegistryError as error:
        report(f"{source.name}: skipped ({error})")
        return []


def _available(source: Source, options: Options) -> list[Release]:
    """Return the releases that can be read now."""
    if source.oldest and options.is_offline:
        return [
            Release(source.name, version, ()) for version in read_table(source.name, options.table).releases
        ]
    if source.oldest:
        listed = list_releases(source.name, source.platform)
        return [release for release in listed if source.covers(release.version)]
    if options.kept is not None and (options.kept / source.name / source.pinned).is_dir():
        return [Release(source.name, source.pinned, ())]
    report(f"{source.name}: skipped, --sources has no checkout of {source.repository} at {source.pinned}")
    return []


def _read(source: Source, release: Release, options: Options) -> Snapshot:
    """Return what a release defines, from the folder of kept sources if it is there."""
    kept = options.kept / source.name / release.version if options.kept else None
    if kept is not None and _is_complete(kept, source):
        return take_snapshot(source, Sources(read_folder(kept, source.folders)))
    with tempfile.TemporaryDirectory() as folder:
        texts = read_archive(download(release, Path(folder)), source.folders)
    if kept is not None:
        write_folder(kept, texts)
        (kept / FOLDERS_READ).write_text("\n".join(source.folders))
    return take_snapshot(source, Sources(texts))


def _is_complete(kept: Path, source: Source) -> bool:
    """Return whether a kept release has all folders of its source; a checkout of a repository has."""
    if not source.oldest:
        return True
    marker = kept / FOLDERS_READ
    return marker.exists() and marker.read_text() == "\n".join(source.folders)


def _before(table: Table, versions: list[str], version: str) -> Snapshot:
    """Return the newest release of the table before `version`, an empty snapshot if there is none."""
    earlier = [each for each in versions[: versions.index(version)] if each in table.releases]
    return table.releases[earlier[-1]] if earlier else Snapshot({}, [], [], [])


if __name__ == "__main__":
    sys.exit(main())
