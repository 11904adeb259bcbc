"""Atomic writing: a file is either complete or absent."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.exporters.writer import Writer, Written
    from stagescope.model import Timeline


def save(timeline: Timeline, path: Path, writer: Writer, *, force: bool) -> Written:
    """Return what `writer` wrote to `path`, through a temporary file that is renamed at the end.

    If the writer fails, `path` is unchanged and no partial file remains. Raises OutputError if `path` exists without
    `force`, or if the operating system refuses to write.
    """
    if path.exists() and not force:
        raise OutputError.exists(path)
    # In the same folder, because a rename is atomic only within one file system.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        written = writer.write(timeline, unfinished)
        unfinished.replace(path)
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from reason
    finally:
        unfinished.unlink(missing_ok=True)
    return replace(written, path=path)
