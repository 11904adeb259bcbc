"""The range of versions that a part states as supported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .registry import version_key

_VERSION = r"(\d+(?:\.\d+)+)"
_RANGE = re.compile(rf"{_VERSION}(?:\s*-\s*{_VERSION})?")

if TYPE_CHECKING:
    from stagescope.record.points import Part

    from .catalog import Source


def is_supported(part: Part, source: Source, version: str) -> bool:
    """Return whether a release is in the range that a part states, such as ``2.8-2.15`` or ``3.1, 3.3-3.3.1``.

    Both ends include all their patches. A repository is pinned at a commit that fits, whatever its branches are called.
    """
    if source.commit:
        return True
    if not _RANGE.search(part.supported):
        raise ValueError(f"{part.framework}: {part.supported!r} is no range of versions")
    return contains(part.supported, version)


def contains(ranges: str, version: str) -> bool:
    """Return whether a version is in one of the ranges of a text."""
    return any(_is_between(oldest, newest or oldest, version) for oldest, newest in _RANGE.findall(ranges))


def _is_between(oldest: str, newest: str, version: str) -> bool:
    end, key = version_key(newest), version_key(version)
    return version_key(oldest) <= key and key[: len(end)] <= end
