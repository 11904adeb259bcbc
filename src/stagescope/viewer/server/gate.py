"""ASGI middleware that checks every request and sets the security headers of every response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from stagescope.viewer.server.access import Asked

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from stagescope.viewer.server.access import Access

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Content security policy: the one script, the one style sheet, requests to this server, nothing else."""

POLICY_VIOLATION = 1008
"""The close code of a WebSocket that breaks a rule (RFC 6455, section 7.4.1)."""


class Gate:
    """An ASGI application that passes on only the requests that Access accepts."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or pass it to the application."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        guarded = _with_headers(send)
        answer = self._access.check(_asked(scope))
        if answer is None:
            await self._app(scope, receive, guarded)
            return
        refusal = PlainTextResponse(answer.text, answer.status, dict(answer.headers))
        await refusal(scope, receive, guarded)


def _asked(scope: Scope) -> Asked:
    query = scope["query_string"].decode("latin-1")
    return Asked(scope["method"], scope["path"], query, Headers(scope=scope))


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return guarded
