"""Errors about traces without pipeline actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from stagescope.ingest.device_ranges.process_trace import Unmarked


def no_ranges(found: Unmarked) -> InputError:
    """Return the error for a trace in which no range is an action, with examples of its ranges."""
    ranges = found.wording.ranges
    shown = ", ".join(repr(name[:60]) for name in found.names)
    what = (
        f"none of its {found.range_count} {ranges} is named like one: {shown}"
        if found.range_count
        else f"it has no {ranges.removesuffix('s')}"
    )
    return InputError(f"no pipeline action in {found.path}: {what}", found.wording.no_ranges)


def no_ranges_in_damaged(path: str | os.PathLike[str], faults: Sequence[str]) -> InputError:
    """Return the error for a trace without an action in its readable part, with the `faults` of its tables."""
    return InputError.damaged(path, f"no pipeline action in its readable part: {'; '.join(faults)}")
