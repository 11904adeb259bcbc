"""Worker threads that do not delay shutdown: Ctrl-C ends the server even while a search is running."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread and return its result or raise its exception; the event loop is not blocked."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(result: T | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # a T wherever there is no error

    def run() -> None:
        try:
            result, error = work(), None
        except Exception as raised:  # noqa: BLE001 - raised again in the event loop
            result, error = None, raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve, result, error)

    threading.Thread(target=run, name="stagescope-answer", daemon=True).start()
    return await done
