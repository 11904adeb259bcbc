"""The Python sources inside the archive or the folder of one release."""

from __future__ import annotations

import tarfile
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SUFFIXES = (".py", ".pyi")
"""Modules, and the stubs of modules that are written in C++."""


def read_archive(archive: Path, prefixes: Sequence[str]) -> dict[str, str]:
    """Return the text of the Python files of a wheel or a source archive by their path below the package's root.

    Only paths that start with one of `prefixes` are read. The first folder of a source archive, which names the
    release, is not part of the path.
    """
    entries = _wheel(archive, prefixes) if archive.suffix == ".whl" else _source_archive(archive, prefixes)
    return {path: data.decode() for path, data in entries}


def read_folder(folder: Path, prefixes: Sequence[str]) -> dict[str, str]:
    """Return the same from a folder that contains the files, for example the checkout of a repository."""
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py*")}
    return {name: paths[name].read_text() for name in sorted(paths) if _is_wanted(name, prefixes)}


def write_folder(folder: Path, sources: Mapping[str, str]) -> None:
    """Write files so that `read_folder` returns them."""
    for name, text in sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _is_wanted(path: str, prefixes: Sequence[str]) -> bool:
    return path.endswith(SUFFIXES) and path.startswith(tuple(prefixes))


def _wheel(archive: Path, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as wheel:
        for name in wheel.namelist():
            if _is_wanted(name, prefixes):
                yield name, wheel.read(name)


def _source_archive(archive: Path, prefixes: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as files:
        for member in files:
            name = member.name.partition("/")[2]
            content = files.extractfile(member) if _is_wanted(name, prefixes) else None
            if content is not None:
                yield name, content.read()
