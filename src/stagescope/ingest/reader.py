"""What a reader is: the one shape that every input format takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagescope.ingest.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagescope.model import Timeline

HEAD_BYTES = 4096
"""How much of a file's beginning `Reader.recognizes` is shown, decompressed."""


@dataclass(frozen=True)
class ReadOptions:
    """What the caller knows about a run and its files may not say.

    `layout` says how the ranks form pipelines, `schedule` and `microbatches` (per step and pipeline) what they
    ran, `pattern` how a trace calls its actions (ingest/annotations/name_pattern.py). `on_read` is
    called with each file when it has been read, so that long work can be watched.
    """

    layout: Layout = field(default_factory=Layout)
    schedule: str | None = None
    microbatches: int | None = None
    pattern: str | None = None
    on_read: Callable[[Path], object] | None = None

    def done(self, path: Path) -> None:
        """Say that a file has been read."""
        if self.on_read is not None:
            self.on_read(path)


@dataclass(frozen=True)
class Reader:
    """One input format: how its files are found, recognized and read.

    `patterns` are shell patterns in lower case that only narrow the search through a directory by the name of a
    file; whether a file belongs to the format is decided by `recognizes(path, head)`, from the first
    `HEAD_BYTES` bytes of its content, decompressed. `read` gets every recognized file of one call at once, so
    that a reader can join what a run spread over several files; it leaves null what no file says, such as
    stages and coordinates, which ingest/stages.py then fills in for every reader alike.
    """

    name: str
    patterns: tuple[str, ...]
    description: str
    recognizes: Callable[[Path, bytes], bool]
    read: Callable[[Sequence[Path], ReadOptions], Timeline]
