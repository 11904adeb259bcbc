"""Functions that tests run in workers: they are of a module, so that workers can import them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Event, Timer

import polars as pl

from stagescope.vocabulary.errors import InputError
from stagescope.vocabulary.limits import limit


def squared(number: int) -> int:
    return number * number


def processors(_item: object) -> list[int]:
    return sorted(os.sched_getaffinity(0))


def options_of_allocator(_item: object) -> list[str]:
    return os.environ["_RJEM_MALLOC_CONF"].split(",")


def trim_threshold(_item: object) -> str | None:
    return os.environ.get("MALLOC_TRIM_THRESHOLD_")


def intervals(_item: object) -> tuple[str, ...]:
    from dask import config  # noqa: PLC0415 - an optional library

    names = ("worker.profile", "admin.tick")
    return tuple(str(config.get(f"distributed.{name}.interval")) for name in names)


def process(_item: object) -> int:
    return os.getpid()


def limit_of_ranks(_item: object) -> int:
    return limit("ranks")


def refused(path: str) -> str:
    raise InputError.damaged(path, "it is odd")


def killed_once(marker: str) -> int:
    """Kill the own worker, unless the file `marker` exists."""
    if marker and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def killed(_item: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def large(size_bytes: int) -> bytes:
    return os.urandom(size_bytes)


def interrupted(number: int) -> int:
    """Get Ctrl-C, as all processes of a terminal do, during a query: Polars handles the signal while it runs one."""
    sent = Event()

    def send() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sent.set()

    Timer(0.05, send).start()
    while not sent.is_set():
        pl.LazyFrame({"number": range(200_000)}).sort("number", descending=True).collect()
    return number
