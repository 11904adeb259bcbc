"""New files and directories: complete or absent, readable for their owner alone, and never written through a link."""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stagescope.storage.addresses import is_address, redacted
from stagescope.storage.errors import output_elsewhere
from stagescope.vocabulary.errors import OutputError, UsageError
from stagescope.vocabulary.file_modes import MALFORMED, directory_mode, file_mode, is_malformed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
STANDARD_OUTPUT = "-"
"""What programs write in place of a file; taken for one, it would make a file that is hard to remove."""
NAME_BYTES = 8
UNFINISHED = ".*.unfinished"
"""Pattern of the names of temporary files."""
MOST_NAME_CHARACTERS = 40
"""Of the final name within the temporary one, which may be at most 255 bytes long."""


@contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[Path]:
    """Yield the path of an empty file to write, which becomes `path` when the block ends without an exception.

    If it ends with one, `path` is unchanged and no partial file remains. Raises OutputError if `path` exists and
    `force` is not set, and if the operating system refuses to write.
    """
    require_here(path)
    if path.exists() and not force:
        raise OutputError.exists(path)
    try:
        with temporary_file(path) as unfinished:
            yield unfinished
            unfinished.replace(path)
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from reason


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield the path of a new empty file beside `path`, removed at the end unless it has been renamed.

    Its name cannot be predicted and the file is created exclusively, so that no user who may write to the directory can
    plant a symbolic link under that name. It is in the same directory, because a rename is atomic only within one file
    system. Raises OSError.
    """
    # Cut, because a file system limits the length of a name.
    name = f".{path.name[:MOST_NAME_CHARACTERS]}.{secrets.token_hex(NAME_BYTES)}.unfinished"
    unfinished = path.with_name(name)
    os.close(create(unfinished))
    try:
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def create(path: Path) -> int:
    """Return the descriptor of a new file. Raises FileExistsError if anything has the name, a link to nothing too.

    Raises UsageError for a malformed mode in the environment.
    """
    if is_malformed():
        raise UsageError(MALFORMED)
    return os.open(path, NEW, file_mode())


def make_directory(path: Path) -> None:
    """Create a directory, and its parents, unless it exists. Raises OSError, and OutputError for an address."""
    require_here(path)
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=directory_mode(), exist_ok=True)


def require_here(path: Path) -> None:
    """Raise OutputError for the address of an object store, which would become a directory named "s3:", and for -."""
    if str(path) == STANDARD_OUTPUT:
        raise OutputError.no_stream()
    if is_address(path):
        raise output_elsewhere(redacted(str(path)))
