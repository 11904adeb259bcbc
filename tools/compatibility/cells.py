"""The cells of docs/compatibility.md: a row must state how each schedule of each release is recorded."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from .schedules import SCHEDULES
from .supported import contains
from .table import FOLDER

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from .catalog import Source
    from .table import Table

Row = dict[str, Any]


def read_rows(path: Path = FOLDER / "coverage.toml") -> list[Row]:
    """Return the rows of the page; the file states their fields."""
    rows: list[Row] = tomllib.loads(path.read_text(encoding="utf-8")).get("row", [])
    return rows


def rows_of(source: Source, rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose framework, such as "Paddle fleet", contains the name of the package of a source."""
    return [row for row in rows if source.packages[0] in row["framework"].lower()]


def silent_cells(source: Source, table: Table, rows: Sequence[Row]) -> list[str]:
    """Return each schedule of each release for which there is no row."""
    own = rows_of(source, rows)
    return [
        f"{source.name} {version}: {path}"
        for version, snapshot in table.releases.items()
        for path in snapshot.schedules
        if path in SCHEDULES[source.name] and not any(_is_for(row, path, source, version) for row in own)
    ]


def _is_for(row: Mapping[str, Any], path: str, source: Source, version: str) -> bool:
    versions = str(row["versions"])
    is_in = source.commit[:7] in versions if source.commit else contains(versions, version)
    return is_in and bool(_scheduled(row) & _names(path))


def _scheduled(row: Mapping[str, Any]) -> set[str]:
    """Return the names of the schedules in a row, separated by commas."""
    return {name.strip() for name in re.split(r",\s*", str(row["schedule"]))}


def _names(path: str) -> set[str]:
    """Return the names under which a row may state ``package.module:name``: all of it, ``module:name``, ``name``."""
    module, _, name = path.partition(":")
    return {path, f"{module.rpartition('.')[2]}:{name}", name}
