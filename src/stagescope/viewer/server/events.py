"""The stream of events of a page (server-sent events, HTML standard, section 9.2): what has changed, as it changes.

A client gets the newest state whenever it is ready for more. What changed meanwhile is not queued, so that a slow
client costs no memory; what it missed of a trend it asks for.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from stagescope.viewer.server.refusals import refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from starlette.requests import Request

    from stagescope.viewer.server.live import VersionedRun

LOOK_S = 0.1
"""How often a stream looks for the end of the server, and has a run that is read from files look for newer ones."""

BEAT_S = 3.0
"""A stream without news sends an empty event so often. A page without any for longer knows that it is disconnected."""

MOST_STREAMS = 32


def event_stream(
    live: VersionedRun, is_ending: Callable[[], bool]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of the stream, which ends when `is_ending`."""
    open_streams = 0

    async def events() -> AsyncIterator[bytes]:
        nonlocal open_streams
        open_streams += 1
        news, loop = asyncio.Event(), asyncio.get_running_loop()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(news.set)

        live.listeners.add(wake)
        try:
            sent, sent_s = -1, time.monotonic()
            while not is_ending():
                live.look()
                number = live.number
                if number != sent:
                    yield b"data: " + json.dumps(live.state, separators=(",", ":")).encode() + b"\n\n"
                    sent, sent_s = number, time.monotonic()
                elif time.monotonic() - sent_s > BEAT_S:
                    yield b"event: beat\ndata:\n\n"
                    sent_s = time.monotonic()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(news.wait(), LOOK_S)
                news.clear()
        finally:
            live.listeners.discard(wake)
            open_streams -= 1

    async def answer(_: Request) -> Response:
        if open_streams >= MOST_STREAMS:
            return refusal(f"{MOST_STREAMS} pages follow this run already", 503)
        return StreamingResponse(events(), media_type="text/event-stream")

    return answer
