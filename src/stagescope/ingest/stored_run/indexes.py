"""Indexes of what is saved beside a stored run: JSON files that end with a checksum of their content."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from stagescope.ingest.streams import open_stream
from stagescope.model.stored_run import manifest_checksum
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

Index = TypeVar("Index")


def read_index(path: Path, kind: type[Index]) -> Index | None:
    """Return an index; None without any, and if it is damaged."""
    if not path.is_file():
        return None
    try:
        with open_stream(path) as file:
            facts = msgspec.json.decode(file.read(), type=dict)
        found = msgspec.convert(facts, kind)
        is_whole = facts.get("checksum") == manifest_checksum(facts)
    except (InputError, msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return found if is_whole else None
