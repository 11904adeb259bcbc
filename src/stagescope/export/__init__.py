"""From a Timeline to a file that other tools open.

`WRITERS` lists every export format; `write` writes one file, whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.export.save import save
from stagescope.export.writer import Writer, Written
from stagescope.export.writers import chrome, html, pftrace, png, svg, table
from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from stagescope.export.viewer_data import ViewerExtras
    from stagescope.timeline import Timeline

WRITERS: tuple[Writer, ...] = (
    chrome.WRITER,
    pftrace.WRITER,
    svg.WRITER,
    png.WRITER,
    html.WRITER,
    table.CSV,
    table.PARQUET,
)
"""Every export format that is built in."""

ALIASES = {"perfetto": "pftrace"}
"""Other names by which a format may be asked for."""


def write(
    timeline: Timeline,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - the word that the command line and pandas users know
    extras: Callable[[], ViewerExtras] | None = None,
    force: bool = False,
) -> Written:
    """Return what stands in the file at `path` after writing the timeline to it.

    `format` is the name of a writer or an alias; None takes it from the suffix of `path`. A file that exists
    is replaced with `force` only. `extras` returns what analysis found; it is called for a format that shows any of it.
    Raises OutputError for an unknown format, an existing file, or a path that cannot be written; in every case the
    file is whole, or as it was before.

    >>> from stagescope.timeline import empty_timeline
    >>> write(empty_timeline(), "run.docx")
    Traceback (most recent call last):
    stagescope.vocabulary.errors.OutputError: no export format '.docx'; known: chrome, pftrace, svg, png, html, ...
    """
    target = Path(path)
    writer = writer_for(target, format)
    if extras is not None and writer.with_extras is not None and (force or not target.exists()):
        writer = writer.with_extras(extras())
    return save(timeline, target, writer, force=force)


def writer_for(path: Path, format_name: str | None) -> Writer:
    """Return the writer of a format, by the suffix of `path` if none is named. Raises OutputError without one."""
    for writer in WRITERS:
        if format_name is None and path.suffix.lower() == writer.suffix:
            return writer
        if format_name is not None and ALIASES.get(format_name, format_name) == writer.name:
            return writer
    known = (writer.name for writer in WRITERS)
    raise OutputError.unknown_format(path.suffix if format_name is None else format_name, known)


__all__ = ["ALIASES", "WRITERS", "Writer", "Written", "write", "writer_for"]
