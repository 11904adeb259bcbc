"""Work in threads that nobody waits for at the end: Ctrl-C ends the server though a search goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; meanwhile the event loop goes on."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: Exception | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # a T wherever there is no error

    def run() -> None:
        try:
            result, error = work(), None
        except Exception as raised:  # noqa: BLE001 - told to whoever waits
            result, error = None, raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name="stagescope-answer", daemon=True).start()
    return await done
