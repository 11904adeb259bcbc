"""Write one Parquet file with the encodings that suit timestamps.

Timestamps of a rank increase, so that the differences of neighbors are small: DELTA_BINARY_PACKED stores them in half
of the bytes of the plain encoding, which is the only one that Polars writes.
"""

from __future__ import annotations

from contextlib import ExitStack
from hashlib import blake2b
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.stored_run import CHECKSUM_BYTES, stored_columns
from stagescope.vocabulary.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CHUNK_BYTES = 1 << 20
INSTALL = "pip install 'stagescope[store]'"
ROWS_PER_GROUP = 262_144
"""A reader that needs a part of a file reads whole groups of rows."""


def write_parquet(rows: pl.DataFrame | Iterable[pl.DataFrame], path: Path) -> None:
    """Write rows of a table as they are stored, with checksums of pages.

    They may come in pieces, of which a few are in memory at a time; the file is the same. Raises OSError, and
    CommandError if pyarrow, which the extra `store` installs, is missing.
    """
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]  # noqa: PLC0415 - an optional library
    except ImportError:
        raise CommandError.missing_library("pyarrow", "storing a run", INSTALL) from None
    with ExitStack() as open_file:
        writer = None
        for piece in [rows] if isinstance(rows, pl.DataFrame) else _in_groups(rows):
            stored = stored_columns(piece)
            table = stored.to_arrow(compat_level=pl.CompatLevel.oldest())
            if writer is None:
                integers = [name for name, dtype in stored.schema.items() if dtype.is_integer()]
                texts = [name for name, dtype in stored.schema.items() if dtype == pl.String]
                writer = parquet.ParquetWriter(
                    path,
                    table.schema,
                    compression="zstd",
                    use_dictionary=texts,
                    column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
                    write_page_checksum=True,
                )
                open_file.enter_context(writer)
            writer.write_table(table, row_group_size=ROWS_PER_GROUP)


def _in_groups(pieces: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows of all pieces, as many at a time as a file has in a group."""
    pending: list[pl.DataFrame] = []
    for piece in pieces:
        pending.append(piece)
        while sum(each.height for each in pending) >= ROWS_PER_GROUP:
            together = pl.concat(pending)
            yield together.head(ROWS_PER_GROUP).rechunk()
            pending = [together.slice(ROWS_PER_GROUP)]
    rest = pl.concat(pending)
    if rest.height:
        yield rest.rechunk()


def checksum_of(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits. Raises OSError."""
    sum_ = blake2b(digest_size=CHECKSUM_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            sum_.update(chunk)
    return sum_.hexdigest()
