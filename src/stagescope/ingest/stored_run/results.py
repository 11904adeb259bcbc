"""The results of analysis beside a stored run: found, checked, and loaded table by table."""

from __future__ import annotations

import re
from hashlib import blake2b
from io import BytesIO
from typing import TYPE_CHECKING

import polars as pl
from polars.exceptions import PanicException, PolarsError

from stagescope.ingest.stored_run import errors
from stagescope.ingest.stored_run.indexes import read_index
from stagescope.ingest.streams import open_stream
from stagescope.model.stored_run import (
    CHECKSUM_BYTES,
    RESULTS,
    RESULTS_FORMAT,
    RESULTS_INDEX,
    Results,
)
from stagescope.vocabulary.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

TABLE_PATH = re.compile(r"[a-z_]+(\.[a-z_]+)?\.parquet")
"""What stagescope writes; anything else could lead out of the directory."""


def read_results(directory: Path, computed_by: str, run: str) -> Results | None:
    """Return the results of analysis of a stored run.

    None without any, if they were computed by another version or for another run, and if they are damaged: then the
    run is analyzed again.
    """
    results = read_index(directory / RESULTS / RESULTS_INDEX, Results)
    wanted = (RESULTS_FORMAT, computed_by, run)
    if results is None or (results.format, results.computed_by, results.run) != wanted:
        return None
    return results if all(TABLE_PATH.fullmatch(each.path) for each in results.tables.values()) else None


def is_intact(directory: Path, results: Results) -> bool:
    """Return whether the files of all tables are what was written."""
    return all(_content(directory / RESULTS / each.path, each.checksum) for each in results.tables.values())


def load_result(directory: Path, results: Results, name: str, schema: pl.Schema) -> pl.DataFrame:
    """Return a table of the results. Raises InputError if its file is missing or not what was written."""
    part = results.tables.get(name)
    path = directory / RESULTS / (f"{name}.parquet" if part is None else part.path)
    if part is None:
        raise errors.damaged_results(path, "it is not among the results of analysis")
    content = _content(path, part.checksum)
    if content is None:
        raise errors.damaged_results(path, "it is missing or has changed since it was written")
    try:
        rows = pl.read_parquet(BytesIO(content), hive_partitioning=False)
    except (PolarsError, PanicException) as error:
        raise errors.damaged_results(path, f"it is no table: {error}") from None
    if rows.schema != schema or rows.height != part.rows:
        raise errors.damaged_results(path, "its columns or rows are not those of the results")
    return rows


def _content(path: Path, checksum: str) -> bytes | None:
    """Return the content of a file; None if it cannot be read or has another checksum."""
    try:
        with open_stream(path) as file:  # which refuses pipes and devices
            content = file.read()
    except InputError:
        return None
    return content if blake2b(content, digest_size=CHECKSUM_BYTES).hexdigest() == checksum else None
