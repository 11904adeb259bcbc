"""Whether spans fit into the memory of this machine, before the first of them is read, or after some of them.

Otherwise the system would end the process after minutes of reading, without a word. The estimates are low: what fits is
not refused, as far as that can be known, and some of what does not fit is not refused either.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.errors.input import ReadSoFar
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

LEAST_SPAN_BYTES = 200
"""Reading and aligning takes about 400 bytes per span at its peak (docs/performance.md): with half of that it cannot
succeed."""

LEAST_TRACE_SPAN_BYTES = 140
"""What was read from a trace has about 70 bytes per span, at least, and next to it is the table of all spans with 71.
Reading takes 220 to 1,200 (docs/scale.md)."""
LEAST_KERNEL_BYTES = 40
LEAST_ROW_BYTES = 70
"""Of the table of spans alone."""

FEWEST_FILES, LEAST_FRACTION = 20, 0.02
"""Until this many files with this share of all bytes are read, nothing is inferred about the others."""
LEAST_OF_OTHERS = 0.5
"""Files that were not read yet count with this share of what those that were read needed per byte."""
MOST_USED_FRACTION = 0.9
"""Of the memory. If this process has taken more before all files are read, reading ends: merging needs even more."""

OWN_BYTES = 256 << 20
"""Code and tables of stagescope itself take less; whatever else a process had before is not counted."""
RETURNED_S = 2.0
"""Polars returns memory that it needed only for reading to the system after half a second."""

STATUS = Path("/proc/self/status")
USED = ("RssAnon:", "VmSwap:")
"""In units of 1024 bytes; files that are mapped into memory are not in it."""
MEMORY = Path("/proc/meminfo")
SIZES = ("MemTotal:", "SwapTotal:")
"""In units of 1024 bytes."""
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of the container, in versions 2 and 1."""
OWN_CGROUPS = Path("/proc/self/cgroup")
"""Of this process, as cgroups(7) describes: Slurm and systemd limit jobs and services without a container."""


def require_memory_for(
    spans: int, refused: Callable[[int, int, int], InputError] = InputError.more_than_memory
) -> None:
    """Raise InputError if this many spans, which have to be read together, need more memory than there is.

    `refused` returns the error, given the spans, the bytes that they need and those of the machine.
    """
    have_bytes = memory_bytes()
    need_bytes = spans * LEAST_SPAN_BYTES
    if have_bytes is not None and need_bytes > have_bytes and "spans" not in changed_limits():
        raise refused(spans, need_bytes, have_bytes)


class ReadingNeed:
    """What the files of a call need in memory, from what was read of them so far."""

    def __init__(self, size_bytes: Mapping[Path, int]) -> None:
        """Begin to read the files with these sizes."""
        self.refusal: InputError | None = None
        self._rest = dict(size_bytes)
        self._file_count, self._file_bytes = len(size_bytes), sum(size_bytes.values())
        self._rest_bytes: Counter[str] = Counter()
        for path, size in size_bytes.items():
            self._rest_bytes[path.suffix] += size
        self._read_bytes: Counter[str] = Counter()
        self._need_bytes: Counter[str] = Counter()
        self._spans = self._kernels = self._new_bytes = self._files = 0
        self._have_bytes = None if "spans" in changed_limits() else memory_bytes()
        self._used_before_bytes = _used_bytes()

    def count(self, spans: int, kernels: int = 0, *, span_bytes: int = LEAST_TRACE_SPAN_BYTES) -> None:
        """Note what was read of the file that `done` is called with next."""
        self._spans += spans
        self._kernels += kernels
        self._new_bytes += spans * span_bytes + kernels * LEAST_KERNEL_BYTES

    def done(self, path: Path) -> None:
        """Raise InputError if the files need more memory than there is, now that this one was read."""
        size, kind = self._rest.pop(path, 0), path.suffix  # compressed files have more spans per byte
        self._files += 1
        self._read_bytes[kind] += size
        self._rest_bytes[kind] -= size
        self._need_bytes[kind] += self._new_bytes
        self._new_bytes = 0
        if self._have_bytes is None:
            return
        read = ReadSoFar(self._files, self._file_count, self._spans, self._kernels)
        need_bytes = self._least_bytes()
        if need_bytes > self._have_bytes:
            self.refusal = InputError.files_beyond_memory(read, need_bytes, self._have_bytes)
        elif self._rest and (used_bytes := self._most_used_bytes(self._have_bytes)):
            self.refusal = InputError.memory_used_up(read, used_bytes, self._have_bytes)
        if self.refusal is not None:
            raise self.refusal

    def mapped(self, spans: int, span_bytes: int) -> None:
        """Raise InputError if the spans that were found in slices so far need more memory than there is."""
        need_bytes = spans * span_bytes
        if self._have_bytes is not None and need_bytes > self._have_bytes:
            read = ReadSoFar(self._files, self._file_count, spans, 0)
            self.refusal = InputError.files_beyond_memory(read, need_bytes, self._have_bytes)
            raise self.refusal

    def _most_used_bytes(self, have_bytes: int) -> int:
        """Return what this process has taken since it began to read, if that is nearly all memory; otherwise 0."""
        for pause_s in (0.0, RETURNED_S):
            time.sleep(pause_s)
            used_bytes = _used_bytes() - self._used_before_bytes
            own_bytes = min(self._used_before_bytes, OWN_BYTES)
            if used_bytes + own_bytes <= MOST_USED_FRACTION * have_bytes:
                return 0
        return used_bytes

    def _least_bytes(self) -> int:
        """Return what all files need at least."""
        so_far = self._need_bytes.total()
        read_bytes = self._read_bytes.total()
        if self._files < FEWEST_FILES or read_bytes < LEAST_FRACTION * self._file_bytes:
            return so_far
        others = sum(
            self._rest_bytes[kind] * self._need_bytes[kind] / size
            for kind, size in self._read_bytes.items()
            if size
        )
        return so_far + int(LEAST_OF_OTHERS * others)


def _used_bytes() -> int:
    """Return the memory of this process, without that of mapped files; 0 if the system does not state it."""
    sizes = [line.split()[1] for line in _text(STATUS).splitlines() if line.startswith(USED)]
    return sum(int(size) * 1024 for size in sizes if size.isdecimal())


def memory_bytes() -> int | None:
    """Return the memory of this machine or container, and its swap; None if the system does not state them."""
    sizes = dict(line.split()[:2] for line in _text(MEMORY).splitlines() if line.startswith(SIZES))
    if not all(sizes.get(name, "").isdecimal() for name in SIZES):
        return None
    memory_bytes, swap_bytes = (int(sizes[name]) * 1024 for name in SIZES)
    limits_bytes = [int(text) for text in map(_text, {*CGROUPS, *_own_limits()}) if text.isdecimal()]
    return min([memory_bytes, *limits_bytes]) + swap_bytes


def _own_limits() -> Iterator[Path]:
    """Yield the files that may state a limit of the groups that this process is in, and of those around them."""
    for line in _text(OWN_CGROUPS).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        for limit in CGROUPS if controllers in {"", "memory"} else ():
            for around in (Path(group), *Path(group).parents):
                yield limit.parent / str(around).lstrip("/") / limit.name


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
