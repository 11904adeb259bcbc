"""Results of workers whose tables are in files: only the paths pass through the process, or scheduler, that waits."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from errno import EIO
from hashlib import sha256
from io import BytesIO
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import polars as pl

from stagescope.execution.memory import return_memory
from stagescope.exporters.new_files import make_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

ROWS_OF_BATCH = 16_384
"""Some rows are read in whole batches."""
BYTES_AT_ONCE = 1 << 20


class Detached(NamedTuple):
    """A table, or the only column of one, that is in a file."""

    path: Path
    is_column: bool


def detach(result: Any, folder: Path) -> Any:
    """Return a result with its tables in files of a folder, which is made; raises OSError.

    A result is a table, a column, or a named tuple or dictionary of results. Everything else stays as it is.
    """
    make_directory(folder)
    return _detach(result, folder / "table")


def _detach(result: Any, place: Path) -> Any:
    if isinstance(result, pl.DataFrame | pl.Series):
        path = place.with_name(f"{place.name}.arrow")
        rows = result.to_frame() if isinstance(result, pl.Series) else result
        write_table(rows, path)
        return Detached(path, isinstance(result, pl.Series))
    if isinstance(result, dict):
        return {name: _detach(each, place.with_name(f"{place.name}-{name}")) for name, each in result.items()}
    if hasattr(result, "_fields"):
        parts = result._asdict().items()
        return result._replace(
            **{name: _detach(each, place.with_name(f"{place.name}-{name}")) for name, each in parts}
        )
    return result


def attach(result: Any) -> Any:
    """Return the result that `detach` was given, with its tables read from their files; raises OSError."""
    if isinstance(result, Detached):
        rows = read_table(result.path)
        return rows.to_series() if result.is_column else rows
    if isinstance(result, dict):
        return {name: attach(each) for name, each in result.items()}
    if hasattr(result, "_fields"):
        return result._replace(**{name: attach(each) for name, each in result._asdict().items()})
    return result


def path_of(table: Any) -> Path:
    """Return the file of a table that `detach` was given alone, or in a field of a result."""
    path: Path = table.path
    return path


def attach_later(result: Any, scanned: Collection[str] = ()) -> Any:
    """Return the same, but each table is read whenever it is used: all tables together may be larger than memory.

    Tables in the fields in `scanned` are LazyFrames, of which only the rows and columns that are used are read.
    """
    if isinstance(result, Detached):
        return attach(result)
    return _LaterFields(result, scanned) if hasattr(result, "_fields") else result


def _scan(result: Any) -> Any:
    """Return the tables in a field as LazyFrames."""
    return _Scans(result) if isinstance(result, dict) else pl.scan_ipc(result.path)


class _Scans(Mapping[str, pl.LazyFrame]):
    """Tables as LazyFrames by name. Each is made when it is asked for, because only one of many usually is."""

    def __init__(self, tables: Mapping[str, Detached]) -> None:
        self._tables = tables

    def __getitem__(self, name: str) -> pl.LazyFrame:
        return pl.scan_ipc(self._tables[name].path)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tables)

    def __len__(self) -> int:
        return len(self._tables)


class _LaterFields:
    """The fields of a named tuple, attached when they are used."""

    def __init__(self, result: Any, scanned: Collection[str]) -> None:
        self._result, self._scanned = result, scanned

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._result, name)
        return _scan(found) if name in self._scanned else attach_later(found, self._scanned)


class DetachedObject(NamedTuple):
    """Any object that is in a file."""

    path: Path
    checksum: str


def write_object(result: object, path: Path) -> DetachedObject:
    """Write any object into a file, and return what `read_object` needs. Raises OSError."""
    with path.open("wb") as file:
        summed = _Summed(file)
        pickle.dump(result, summed, pickle.HIGHEST_PROTOCOL)
    return DetachedObject(path, summed.checksum.hexdigest())


class _Summed:
    """A file to write to, and the checksum of what was written: the content is never in memory as a whole."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.checksum = file, sha256()

    def write(self, content: bytes) -> int:
        self.checksum.update(content)
        return self._file.write(content)


def read_object(detached: DetachedObject) -> Any:
    """Return the object in a file. Raises OSError, also if it is not what a worker of this call wrote."""
    return_memory()
    with detached.path.open("rb") as file:
        if _sum_up(file) != detached.checksum:
            raise OSError(EIO, "changed while the run was analyzed", str(detached.path))
        file.seek(0)
        found = pickle.load(file)  # noqa: S301 - loading a pickle runs its code, so it was compared first
    return_memory()
    return found


def _sum_up(file: IO[bytes]) -> str:
    """Return the checksum of a file, which is never in memory as a whole."""
    checksum = sha256()
    while block := file.read(BYTES_AT_ONCE):
        checksum.update(block)
    return checksum.hexdigest()


def write_table(rows: pl.DataFrame, path: Path) -> None:
    """Write a table into a file that `read_table` reads. Raises OSError."""
    rows.write_ipc(path, compression="lz4", record_batch_size=ROWS_OF_BATCH)


def read_table(path: Path) -> pl.DataFrame:
    """Return the table in a file; it is not mapped into memory, so the file may be removed. Raises OSError."""
    return pl.read_ipc(BytesIO(path.read_bytes()))
