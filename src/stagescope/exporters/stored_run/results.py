"""Write the results of analysis beside a stored run: tables first, and the index that lists them last."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
from polars.io.plugins import register_io_source

from stagescope.exporters.new_files import make_directory
from stagescope.exporters.stored_run.parquet import checksum_of
from stagescope.exporters.stored_run.partition_files import complete_file
from stagescope.model.stored_run import RESULTS, RESULTS_FORMAT, RESULTS_INDEX, Result, Results, manifest_text
from stagescope.vocabulary.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any


def write_results(
    directory: Path,
    of: tuple[str, str, str | None],
    report: str,
    tables: Iterable[tuple[str, Iterator[pl.DataFrame] | Path]],
) -> Results:
    """Write facts and tables of a report into a stored run, whose lock the caller holds, and return what was written.

    `of` is what the results belong to: version of the code, checksum of the manifest, and steps. Tables come in pieces,
    at least one each, or as files that `write_table` wrote, which are moved. Earlier results are removed. Raises
    OutputError if the operating system refuses to write.
    """
    place = directory / RESULTS
    try:
        shutil.rmtree(place, ignore_errors=True)
        make_directory(place)
        written = {name: _added(rows, place / f"{name}.parquet") for name, rows in tables}
        results = Results(RESULTS_FORMAT, *of, report, dict(sorted(written.items())))
        facts: dict[str, Any] = asdict(results)
        with complete_file(place / RESULTS_INDEX) as unfinished:
            unfinished.write_text(manifest_text(facts), encoding="utf-8")
    except OSError as reason:
        raise OutputError.not_stored(directory, reason) from reason
    return results


def _added(table: Iterator[pl.DataFrame] | Path, path: Path) -> Result:
    """Return the entry of a table, whose file is there then."""
    if isinstance(table, Path):
        table.replace(path)
        rows = pl.scan_parquet(path).select(pl.len()).collect().item()
    else:
        rows = write_table(table, path)
    return Result(path.name, rows, checksum_of(path))


def write_table(pieces: Iterator[pl.DataFrame], path: Path) -> int:
    """Write a table in pieces, at least one, and return the number of its rows. Raises OSError."""
    first = next(pieces)
    second = next(pieces, None)
    with complete_file(path) as unfinished:
        if second is None:
            first.write_parquet(unfinished)
            return first.height
        return _write_pieces(chain([first, second], pieces), first.schema, unfinished)


def _write_pieces(pieces: Iterator[pl.DataFrame], schema: pl.Schema, path: Path) -> int:
    """Write a table of which one piece after the other is in memory, and return the number of its rows."""
    rows = 0

    def source(*_: object) -> Iterator[pl.DataFrame]:
        nonlocal rows
        for piece in pieces:
            rows += piece.height
            yield piece

    # The streaming engine of Polars writes rows while it asks for more.
    register_io_source(source, schema=schema).sink_parquet(path, maintain_order=True)
    return rows
