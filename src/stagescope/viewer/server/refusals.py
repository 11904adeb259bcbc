"""Answers to requests that the local server refuses: a message with its translations, of which a page shows one."""

from __future__ import annotations

from starlette.responses import JSONResponse

from stagescope.reports.translations import with_message


def refusal(message: str, status: int) -> JSONResponse:
    """Return the answer with a message and a status of HTTP."""
    return JSONResponse(with_message({}, "error", message), status)
