"""Locks of entries of the cache: one process at a time makes an entry, and others wait for it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from stagescope.storage.errors import missing_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOCK = "lock"


@contextmanager
def locked(entry: Path, on_wait: Callable[[], object] = int) -> Iterator[None]:
    """Hold the lock of an entry, which the system releases if the process is killed.

    `on_wait` is called if another process holds it, before waiting for that. Raises OSError, and CommandError if
    filelock, which the extras `cloud` and `store` install, is missing.
    """
    try:
        from filelock import FileLock, Timeout  # noqa: PLC0415 - an optional library
    except ImportError:
        raise missing_library("filelock", "s3") from None
    lock = FileLock(entry / LOCK, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
