"""Checksums of the code of stagescope: what other code stored or computed is not mixed with what this code does."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from pathlib import Path

from stagescope.model.stored_run import CHECKSUM_BYTES

STORING = (
    "api/aligned_copies.py", "api/run_clocks.py", "api/run_division.py", "api/run_parts.py", "api/storing_parts.py",
    "clocks", "exporters/stored_run", "ingest", "model", "record/format.py", "schedules", "vocabulary",
)  # fmt: skip
"""Parts whose code determines what is stored."""


@cache
def checksum_of_code(parts: tuple[str, ...]) -> str:
    """Return a checksum of the code of some parts of the package, which are folders and modules."""
    package = Path(__file__).parents[1]
    sum_ = blake2b(digest_size=CHECKSUM_BYTES)
    for part in parts:
        place = package / part
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            sum_.update(path.read_bytes())
    return sum_.hexdigest()
