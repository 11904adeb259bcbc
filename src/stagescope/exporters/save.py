"""A file that is either there whole or not at all."""

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
    """Return what `writer` wrote to `path`: into a file beside it first, then renamed.

    Whatever stops the writer, `path` stays as it was and no half file is left. Raises OutputError when
    `path` exists and `force` is not given, and when the system refuses to write.
    """
    if path.exists() and not force:
        raise OutputError.exists(path)
    # Beside the target, because a rename is atomic within one file system only.
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        written = writer.write(timeline, unfinished)
        unfinished.replace(path)
    except OSError as reason:
        raise OutputError.cannot_write(path, reason) from reason
    finally:
        unfinished.unlink(missing_ok=True)
    return replace(written, path=path)
