"""The interface of a reader: what every input format provides, and the options it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stagescope.ingest.layout import Layout
from stagescope.ingest.memory_need import LEAST_TRACE_SPAN_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stagescope.ingest.mapping.mapping import MappingRequest
    from stagescope.ingest.memory_need import ReadingNeed
    from stagescope.model import Timeline
    from stagescope.vocabulary.steps import StepRange


def itself(path: Path) -> Path:
    """Return the path."""
    return path


HEAD_BYTES = 4096
"""Number of decompressed bytes from the beginning of a file that are passed to `Reader.recognizes`."""


@dataclass(frozen=True)
class ReadOptions:
    """Facts about a run that the caller knows and the files may lack.

    `layout` describes how the ranks form pipelines, `schedule` and `microbatches` (per step and pipeline) what they
    ran, `pattern` how a trace names its actions (ingest/annotations/name_pattern.py), `mapping` what a trace states
    elsewhere (ingest/mapping), None if the caller states nothing about it. `attempt` is the number of the
    attempt to read of a run that was restarted, None for the last complete one. `pipeline` is the name of the pipeline
    to read where each process ran several, None for the one that took the most time. `on_read` is called with each
    file after it has been read, to report progress. With `kernels`, readers of device traces keep every kernel.
    `steps` are the only ones that are wanted, None for all: readers of large files may leave out the others early.
    `need` refuses files that need more memory than there is.
    """

    layout: Layout = field(default_factory=Layout)
    schedule: str | None = None
    microbatches: int | None = None
    pattern: str | None = None
    attempt: int | None = None
    pipeline: str | None = None
    on_read: Callable[[Path], object] | None = None
    kernels: bool = False
    mapping: MappingRequest | None = None
    steps: StepRange | None = None
    need: ReadingNeed | None = None

    def count(self, spans: int, kernels: int = 0, *, span_bytes: int = LEAST_TRACE_SPAN_BYTES) -> None:
        """Note what was read of the file that `done` is called with next, and what a span needs in memory at least."""
        if self.need is not None:
            self.need.count(spans, kernels, span_bytes=span_bytes)

    def done(self, path: Path) -> None:
        """Report that a file has been read. Raises InputError if all files need more memory than there is."""
        if self.on_read is not None:
            self.on_read(path)
        if self.need is not None:
            self.need.done(path)


@dataclass(frozen=True)
class Reader:
    """One input format: how its files are found, recognized and read.

    `patterns` are lower-case shell patterns that only narrow a directory search by file name; where nothing in a
    directory matches any, files that end with one of `suffixes` are found by their content. Whether a file belongs
    to the format is decided by `recognizes(path, head)` from the first `HEAD_BYTES` decompressed bytes. `read` gets
    all recognized files of one call at once, because a run may be spread over several files. It leaves unknown values
    null; ingest/stages.py then fills in stages and coordinates for every reader. `has_attempts` states whether its
    files may contain several attempts of a run, and several pipelines; `is_mapped` whether it uses the mapping of a
    call; `knows_copies` whether `read` finds copies of its files itself. `unit(path)` is the path of what a file is a
    part of, where several files are read as one; otherwise the file itself.
    """

    name: str
    patterns: tuple[str, ...]
    description: str
    recognizes: Callable[[Path, bytes], bool]
    read: Callable[[Sequence[Path], ReadOptions], Timeline]
    has_attempts: bool = False
    is_mapped: bool = False
    suffixes: tuple[str, ...] = ()
    knows_copies: bool = False
    unit: Callable[[Path], Path] = itself
