"""Atomic writing: a file is either complete or absent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stagescope.exporters.new_files import new_file

if TYPE_CHECKING:
    from pathlib import Path

    from stagescope.exporters.writer import Writer, Written
    from stagescope.model import Timeline


def save(timeline: Timeline, path: Path, writer: Writer, *, force: bool) -> Written:
    """Return what `writer` wrote to `path`, through a temporary file that is renamed at the end.

    If the writer fails, `path` is unchanged and no partial file remains. Raises OutputError if `path` exists without
    `force`, or if the operating system refuses to write.
    """
    with new_file(path, force=force) as unfinished:
        written = writer.write(timeline, unfinished)
    return replace(written, path=path)
