"""The range of versions that a part states as supported."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .registry import version_key

if TYPE_CHECKING:
    from stagescope.record.points import Part

    from .catalog import Source


def is_supported(part: Part, source: Source, version: str) -> bool:
    """Return whether a release is in the range that a part states: ``2.8-2.15``, both ends with all their patches.

    A pinned commit is supported if the text contains the beginning of its hash, or states no range of versions for
    that source at all.
    """
    if source.commit:
        hashes = re.findall(r"\b[0-9a-f]{7,40}\b", part.supported)
        return not hashes or any(version.startswith(each[: len(version)]) for each in hashes)
    found = re.search(r"(\d+(?:\.\d+)+)\s*-\s*(\d+(?:\.\d+)+)", part.supported)
    if found is None:
        raise ValueError(f"{part.framework}: {part.supported!r} is no range of versions")
    oldest, newest = (version_key(end) for end in found.groups())
    key = version_key(version)
    return oldest <= key and key[: len(newest)] <= newest
