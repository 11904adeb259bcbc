"""The manifest of a stored run: found, read and checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from stagescope.ingest.stored_run import errors
from stagescope.ingest.streams import open_stream
from stagescope.model.stored_run import FORMAT, MANIFEST, TABLE_OF, VERSION, Manifest, manifest_checksum
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

PART_PATH = re.compile(r"([a-z]+)(\.parquet|/pipeline=-?\d{1,10}/step_range=-?\d{1,10}/part\.parquet)")
"""What stagescope writes; anything else could lead out of the directory."""

MOST = 2**60
"""No table has so many rows or bytes; sums of several still fit 64 bits."""


def recognize_manifest(path: Path, head: bytes) -> bool:
    """Return whether a file is the manifest of a stored run."""
    return path.name == MANIFEST and f'"{FORMAT}"'.encode() in head


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of a stored run.

    Raises InputError if the run is unfinished, the manifest is damaged, or a newer stagescope wrote it.
    """
    path = directory / MANIFEST
    try:
        path.stat()
    except FileNotFoundError:
        raise InputError.unfinished_store(directory) from None
    except OSError as reason:
        raise InputError.cannot_read(path, reason) from reason
    with open_stream(path) as file:  # which refuses pipes and devices
        content = file.read()
    try:
        facts = msgspec.json.decode(content, type=dict)
        version = facts.get("version")
        if isinstance(version, int) and version > VERSION:
            raise errors.newer_version(directory, version, VERSION)
        if version != VERSION:
            raise errors.damaged_manifest(path, f"its version is {version!r}")
        manifest = msgspec.convert(facts, Manifest)
        checksum = manifest_checksum(facts)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise errors.damaged_manifest(path, str(error)) from None
    if facts.get("checksum") != checksum:
        raise errors.damaged_manifest(path, "its checksum does not match its content")
    _check(manifest, path)
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    if manifest.format != FORMAT:
        raise errors.damaged_manifest(path, f"its format is {manifest.format!r}, not {FORMAT!r}")
    for part in manifest.parts:
        found = PART_PATH.fullmatch(part.path)
        if found is None or found[1] != part.table or part.table not in TABLE_OF:
            raise errors.damaged_manifest(
                path, f"it lists {part.path!r}, which is not a file of a stored run"
            )
        if not all(0 <= number < MOST for number in (part.rows, part.size_bytes)):
            text = f"{part.path!r} has {part.rows} rows and {part.size_bytes} bytes, which is impossible"
            raise errors.damaged_manifest(path, text)
