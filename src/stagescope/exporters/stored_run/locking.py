"""One process at a time writes a stored run."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from stagescope.exporters.stored_run.parquet import INSTALL
from stagescope.model.stored_run import LOCK
from stagescope.vocabulary.errors import CommandError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a stored run, which the system releases if the process is killed.

    Raises OutputError if another process holds it, and CommandError if filelock, which the extra `store` installs, is
    missing.
    """
    try:
        from filelock import FileLock, Timeout  # noqa: PLC0415 - an optional library
    except ImportError:
        raise CommandError.missing_library("filelock", "storing a run", INSTALL) from None
    lock = FileLock(directory / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise OutputError.being_written(directory) from None
    except OSError as reason:
        raise OutputError.cannot_write(directory / LOCK, reason) from reason
    try:
        yield
    finally:
        lock.release()
