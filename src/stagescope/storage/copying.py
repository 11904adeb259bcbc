"""Copies many objects at once, with progress in bytes; Ctrl-C ends all copies after the block that each is reading."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from stagescope.storage.object_store import ObjectStore, Remote

AT_ONCE = 8
PATIENCE_S = 2.0
"""How long copies may go on after Ctrl-C or an error; a connection that hangs does not delay the end."""
LOOK_S = 0.2


class _StoppedError(Exception):
    """Another copy failed, or the user pressed Ctrl-C."""


def copy_all(
    store: ObjectStore, copies: Mapping[str, tuple[Remote, Path]], on_fetched: Callable[[int, int], object]
) -> Iterator[str]:
    """Yield the key of each copy when it is complete. `copies` has objects and the new files for them.

    `on_fetched` is called in this thread with the bytes copied so far and all bytes. Raises InputError and OSError as
    ObjectStore.copy does.
    """
    wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in copies:
        wanted.put(name)
    done: queue.SimpleQueue[tuple[str | None, int | Exception]] = queue.SimpleQueue()
    stopped = threading.Event()

    def on_bytes(count: int) -> None:
        done.put((None, count))
        if stopped.is_set():
            raise _StoppedError

    def work() -> None:
        try:
            while not stopped.is_set():
                name = wanted.get_nowait()
                store.copy(*copies[name], on_bytes)
                done.put((name, 0))
        except (queue.Empty, _StoppedError):
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller gets it
            done.put((None, error))

    # Daemons, so that a connection that hangs does not keep the process.
    threads = [
        threading.Thread(target=work, name="stagescope-copy", daemon=True)
        for _ in range(min(AT_ONCE, len(copies)))
    ]
    for thread in threads:
        thread.start()
    try:
        yield from _completed(done, copies, on_fetched)
    finally:
        stopped.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def _completed(
    done: queue.SimpleQueue[tuple[str | None, int | Exception]],
    copies: Mapping[str, tuple[Remote, Path]],
    on_fetched: Callable[[int, int], object],
) -> Iterator[str]:
    all_bytes = sum(remote.size_bytes for remote, _ in copies.values())
    left, done_bytes = len(copies), 0
    on_fetched(0, all_bytes)
    while left:
        try:
            name, outcome = done.get(
                timeout=LOOK_S
            )  # with a limit, so that Ctrl-C is noticed on every system
        except queue.Empty:
            continue
        if isinstance(outcome, Exception):
            raise outcome
        if name is None:
            done_bytes += outcome
            on_fetched(done_bytes, all_bytes)
        else:
            left -= 1
            yield name
    on_fetched(all_bytes, all_bytes)
