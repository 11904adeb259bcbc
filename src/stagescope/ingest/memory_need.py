"""Whether spans fit into the memory of this machine, before the first of them is read.

Otherwise the system would end the process after minutes of reading, without a word.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import changed_limits

if TYPE_CHECKING:
    from collections.abc import Callable

LEAST_SPAN_BYTES = 200
"""Reading and aligning takes about 400 bytes per span at its peak (docs/performance.md): with half of that it cannot
succeed."""

MEMORY = Path("/proc/meminfo")
SIZES = ("MemTotal:", "SwapTotal:")
"""In units of 1024 bytes."""
CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Of the container, in versions 2 and 1."""


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


def memory_bytes() -> int | None:
    """Return the memory of this machine or container, and its swap; None if the system does not state them."""
    sizes = dict(line.split()[:2] for line in _text(MEMORY).splitlines() if line.startswith(SIZES))
    if not all(sizes.get(name, "").isdecimal() for name in SIZES):
        return None
    memory_bytes, swap_bytes = (int(sizes[name]) * 1024 for name in SIZES)
    limits_bytes = [int(text) for text in map(_text, CGROUPS) if text.isdecimal()]
    return min([memory_bytes, *limits_bytes]) + swap_bytes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
