"""Whether recordings fit into the memory of this machine, before the first of them is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.ingest.memory_need import require_memory_for
from stagescope.record import format as fmt
from stagescope.record.format import SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stagescope.vocabulary.steps import StepRange


def require_memory(paths: Iterable[Path], steps: StepRange | None) -> None:
    """Raise InputError if the spans of uncompressed recordings need more memory than there is.

    Not with `steps`, because only their spans stay in memory, and not if the caller states a limit on spans.
    """
    if steps is None:
        require_memory_for(sum(_size_bytes(path) for path in paths if path.suffix == SUFFIX) // fmt.SPAN.size)


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
