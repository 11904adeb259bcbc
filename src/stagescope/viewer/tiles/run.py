"""One run as the server shows it: its levels, its meta data, and the sections of its panels."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.viewer.tiles.levels import Levels, open_levels
from stagescope.viewer.tiles.tiles import tiling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

META_FILE = "meta.json"
IDLE_FILE, KERNELS_FILE = "idle.parquet", "kernels.parquet"
KERNELS_AT_ONCE = 1 << 15
"""Kernels of a group that is read or skipped as a whole."""

SECTION_PREFIX = "section-"
JSON_TYPE, BLOB_TYPE = "application/json", "application/octet-stream"
SUFFIXES = {".json": JSON_TYPE, ".blob": BLOB_TYPE}


class Section(NamedTuple):
    """One section as it is sent: media type and bytes."""

    media_type: str
    data: bytes


@dataclass(frozen=True)
class RunView:
    """Everything that the server needs for its responses. `version` changes with the data.

    `idle` has row, start, duration and waiting_for, for the statistics of a selection; None if the run has none.
    `kernels` are rows of `kernel_data.kernel_rows` with relative starts; None if there are few enough for a section.
    `other` is the run that it is compared with, None without.
    """

    version: str
    meta: Mapping[str, Any]
    meta_data: bytes
    sections: Mapping[str, Section]
    levels: Levels
    idle: pl.DataFrame | None
    kernels: pl.LazyFrame | None = None
    other: RunView | None = None


def json_bytes(value: object) -> bytes:
    """Return JSON as the server sends it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def save_run(
    folder: Path,
    meta: Mapping[str, Any],
    sections: Mapping[str, Section],
    idle: pl.DataFrame | None,
    kernels: pl.DataFrame | None = None,
) -> None:
    """Write meta, sections, idle intervals and kernels next to the levels in `folder`."""
    (folder / META_FILE).write_bytes(json_bytes(meta))
    if idle is not None:
        idle.write_parquet(folder / IDLE_FILE)
    if kernels is not None:
        kernels.write_parquet(folder / KERNELS_FILE, row_group_size=KERNELS_AT_ONCE)
    suffixes = {media_type: suffix for suffix, media_type in SUFFIXES.items()}
    for name, section in sections.items():
        (folder / f"{SECTION_PREFIX}{name}{suffixes[section.media_type]}").write_bytes(section.data)


def open_run(folder: Path) -> RunView:
    """Return the run in `folder`. Raises OSError or ValueError if it is incomplete."""
    levels = open_levels(folder)
    sections = {
        path.stem.removeprefix(SECTION_PREFIX): Section(SUFFIXES[path.suffix], path.read_bytes())
        for path in sorted(folder.glob(f"{SECTION_PREFIX}*"))
    }
    stored = json.loads((folder / META_FILE).read_text(encoding="utf-8"))
    if stored["span_count"] != levels.shape.span_count:
        raise ValueError(f"{META_FILE} is of other levels")
    meta = {**stored, **tiling(levels)._asdict(), "version": folder.name, "sections": list(sections)}
    idle = pl.read_parquet(folder / IDLE_FILE) if (folder / IDLE_FILE).exists() else None
    kernels = pl.scan_parquet(folder / KERNELS_FILE) if (folder / KERNELS_FILE).exists() else None
    return RunView(folder.name, meta, json_bytes(meta), sections, levels, idle, kernels)
