"""Write one Parquet file with the encodings that suit timestamps.

Timestamps of a rank increase, so that the differences of neighbors are small: DELTA_BINARY_PACKED stores them in half
of the bytes of the plain encoding, which is the only one that Polars writes.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import polars as pl

from stagescope.model.stored_run import CHECKSUM_BYTES, stored_columns
from stagescope.vocabulary.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

CHUNK_BYTES = 1 << 20
INSTALL = "pip install 'stagescope[store]'"
ROWS_PER_GROUP = 262_144
"""A reader that needs a part of a file reads whole groups of rows."""


def write_parquet(rows: pl.DataFrame, path: Path) -> None:
    """Write rows of a table as they are stored, with checksums of pages. Raises OSError.

    Raises CommandError if pyarrow, which the extra `store` installs, is missing.
    """
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]  # noqa: PLC0415 - an optional library
    except ImportError:
        raise CommandError.missing_library("pyarrow", "storing a run", INSTALL) from None
    stored = stored_columns(rows)
    integers = [name for name, dtype in stored.schema.items() if dtype.is_integer()]
    texts = [name for name, dtype in stored.schema.items() if dtype == pl.String]
    parquet.write_table(
        stored.to_arrow(compat_level=pl.CompatLevel.oldest()),
        path,
        compression="zstd",
        use_dictionary=texts,
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        row_group_size=ROWS_PER_GROUP,
        write_page_checksum=True,
    )


def checksum_of(path: Path) -> str:
    """Return the checksum of a file, in hexadecimal digits. Raises OSError."""
    sum_ = blake2b(digest_size=CHECKSUM_BYTES)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            sum_.update(chunk)
    return sum_.hexdigest()
