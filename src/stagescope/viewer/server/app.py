"""Routes of the server: the page, its script and style, and the requests of docs/viewer-format.md, "Server".

Every route is listed here; no path of a request becomes a file name. The addresses of a page and of its requests
include the version of the run, so a page that was opened before the run changed never gets tiles of a newer version.
"""

from __future__ import annotations

import asyncio
import functools
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from stagescope.reports.translations import with_message
from stagescope.viewer.kernel_data import kernel_blob
from stagescope.viewer.server.events import event_stream
from stagescope.viewer.server.parameters import (
    MOST_FOUND,
    ParameterError,
    part_of,
    text_of,
    time_of,
    whole_number,
)
from stagescope.viewer.server.refusals import refusal
from stagescope.viewer.server.threads import in_thread
from stagescope.viewer.tiles.levels import Part, TooManyError
from stagescope.viewer.tiles.links import find_links, span_dicts
from stagescope.viewer.tiles.query import QueryError
from stagescope.viewer.tiles.run import BLOB_TYPE, JSON_TYPE
from stagescope.viewer.tiles.search import search_spans
from stagescope.viewer.tiles.statistics import select_statistics
from stagescope.viewer.tiles.tiles import MOST_COMPARED, spans_blob, tile_blob
from stagescope.vocabulary.errors import StagescopeError
from stagescope.vocabulary.language import html_language

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from importlib.abc import Traversable

    from starlette.requests import Request

    from stagescope.viewer.server.live import VersionedRun
    from stagescope.viewer.tiles.run import RunView

    Handler = Callable[[RunView, Mapping[str, str]], Response]
    Query = Callable[[str], Mapping[str, Any]]

MOST_QUERY = 10_000
"""Characters of an SQL query."""

QUICK_AT_ONCE, SLOW_AT_ONCE = 3, 1
"""Requests handled at the same time: those that read a part of the run, and those that may read all of it."""

PAGE = """\
<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>stagescope</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/viewer.css">
</head>
<body>
<div id="viewer"><p>This page draws a pipeline-parallel training run. It needs JavaScript.</p></div>
<script src="/viewer.js"></script>
</body>
</html>
"""
ASSETS = files("stagescope.viewer") / "assets"
RUN = "/run/{version}/"
GONE_CLIENT = 499
"""nginx's status for a client that closed the connection before the response."""


class NothingThereError(Exception):
    """The run has no such span or section."""


class GoneError(Exception):
    """The requested version of the run is no longer kept."""


def make_app(
    live: VersionedRun,
    assets: Traversable = ASSETS,
    is_ending: Callable[[], bool] = lambda: False,
    query: Query | None = None,
) -> Starlette:
    """Return the web application for a run; `assets` has viewer.js and viewer.css, `query` answers SQL.

    Event streams end when `is_ending`.
    """
    in_memory: dict[str, Handler] = {"api/meta": _meta, "api/section": _section}
    quick: dict[str, Handler] = {
        "api/tile": _tile,
        "api/kernels": _kernels,
        "api/details": _details,
        "api/links": _links,
    }
    slow: dict[str, Handler] = {"api/search": _search, "api/select": _select, "api/spans": _spans}
    in_memory["api/other/meta"], slow["api/other/spans"] = _of_other(_meta), _of_other(_spans)
    routes = [
        Route("/", functools.partial(_newest, live)),
        Route(RUN, functools.partial(_page, live, PAGE.format(language=html_language()))),
        Route("/viewer.js", _fixed((assets / "viewer.js").read_bytes(), "text/javascript")),
        Route("/viewer.css", _fixed((assets / "viewer.css").read_bytes(), "text/css")),
        Route(f"{RUN}api/version", functools.partial(_version, live)),
        Route("/events", event_stream(live, is_ending)),
        Route("/trend", functools.partial(_trend, live)),
    ]
    routes += [Route(f"{RUN}{path}", _answer_at_once(live, handler)) for path, handler in in_memory.items()]
    for handlers, most in ((quick, QUICK_AT_ONCE), (slow, SLOW_AT_ONCE)):
        slot = asyncio.Semaphore(most)
        routes += [Route(f"{RUN}{path}", _answer(live, handler, slot)) for path, handler in handlers.items()]
    sql = _answer(live, functools.partial(_sql, query), asyncio.Semaphore(1))
    routes.append(Route(f"{RUN}api/sql", sql))
    return Starlette(routes=routes, exception_handlers=HANDLERS)


def _fixed(data: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return Response(data, media_type=media_type)

    return answer


def _answer_at_once(live: VersionedRun, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a handler whose response is in memory; it waits for no other request."""

    async def answer(request: Request) -> Response:
        run = live.version(request.path_params["version"])
        if run is None:
            raise GoneError
        live.has_arrived(run.version)
        return handler(run, dict(request.query_params))

    return answer


def _answer(
    live: VersionedRun, handler: Handler, slot: asyncio.Semaphore
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a handler, which runs in a thread so that other requests are served."""

    async def answer(request: Request) -> Response:
        run = live.version(request.path_params["version"])
        if run is None:
            raise GoneError
        async with slot:
            if await request.is_disconnected():
                return Response(
                    status_code=GONE_CLIENT
                )  # the client is gone, and other requests wait for this slot
            return await in_thread(functools.partial(handler, run, dict(request.query_params)))

    return answer


async def _newest(live: VersionedRun, _: Request) -> Response:
    return RedirectResponse(f"/run/{live.expect()}/", 303)


async def _page(live: VersionedRun, page: str, request: Request) -> Response:
    """Return the page of a version that is expected; other addresses redirect, and browsers keep the fragment."""
    live.look()
    version = request.path_params["version"]
    if not live.is_expected(version):
        return await _newest(live, request)
    live.version(version)
    return Response(page, media_type="text/html")


async def _version(live: VersionedRun, request: Request) -> Response:
    live.look()
    live.version(request.path_params["version"])  # a page still shows it
    return JSONResponse(with_message({"version": live.current.version}, "problem", live.problem))


async def _trend(live: VersionedRun, request: Request) -> Response:
    since = whole_number(request.query_params, "since", 0, 1 << 59)
    return JSONResponse(live.trend_since(since))


def _meta(run: RunView, _: Mapping[str, str]) -> Response:
    return Response(run.meta_data, media_type=JSON_TYPE)


def _tile(run: RunView, given: Mapping[str, str]) -> Response:
    level = whole_number(given, "level", 0, len(run.levels.exponents))
    part = part_of(given, run.levels.shape.row_count)
    return Response(tile_blob(run.levels, level, part), media_type=BLOB_TYPE)


def _spans(run: RunView, given: Mapping[str, str]) -> Response:
    rows = np.arange(run.levels.shape.row_count)
    part = time_of(given, rows) if given else Part(0, run.levels.shape.end + 1, rows)
    return Response(spans_blob(run.levels, part, MOST_COMPARED), media_type=BLOB_TYPE)


def _of_other(handler: Handler) -> Handler:
    """Return the handler of a request about the run that the one of the address is compared with."""

    def answer(run: RunView, given: Mapping[str, str]) -> Response:
        if run.other is None:
            raise NothingThereError
        return handler(run.other, given)

    return answer


def _kernels(run: RunView, given: Mapping[str, str]) -> Response:
    if run.kernels is None:
        raise NothingThereError
    part = part_of(given, run.levels.shape.row_count)
    return Response(kernel_blob(run.kernels, part), media_type=BLOB_TYPE)


def _section(run: RunView, given: Mapping[str, str]) -> Response:
    section = run.sections.get(text_of(given, "name"))
    if section is None:
        raise NothingThereError
    return Response(section.data, media_type=section.media_type)


def _details(run: RunView, given: Mapping[str, str]) -> Response:
    return JSONResponse(span_dicts(run.levels, np.array([_id(run, given)]))[0])


def _links(run: RunView, given: Mapping[str, str]) -> Response:
    whole = whole_number(given, "whole", 0, 1) == 1
    return JSONResponse(find_links(run.levels, run.meta, _id(run, given), whole=whole))


def _search(run: RunView, given: Mapping[str, str]) -> Response:
    most = whole_number(given, "limit", 0, MOST_FOUND)
    return JSONResponse(search_spans(run.levels, run.meta, text_of(given, "q"), most))


def _select(run: RunView, given: Mapping[str, str]) -> Response:
    part = part_of(given, run.levels.shape.row_count)
    return JSONResponse(select_statistics(run.levels, part, run.idle))


def _sql(query: Query | None, _: RunView, given: Mapping[str, str]) -> Response:
    if query is None:
        raise ParameterError(
            "a running training cannot be queried; stagescope sql reads what it has recorded"
        )
    return JSONResponse(query(text_of(given, "q", MOST_QUERY)))


def _id(run: RunView, given: Mapping[str, str]) -> int:
    number = whole_number(given, "id", 0, 1 << 59)
    if number >= run.levels.shape.span_count:
        raise NothingThereError
    return number


async def _refused(_: Request, error: Exception) -> Response:
    return refusal(str(error), 400)


async def _nothing(_: Request, __: Exception) -> Response:
    return refusal("no span or section with this number or name", 404)


async def _gone(_: Request, __: Exception) -> Response:
    return refusal("the run has changed since this page was opened; reload it", 410)


async def _too_many(_: Request, __: Exception) -> Response:
    return refusal("this part of the run is too large for one response", 413)


HANDLERS: dict[Any, Any] = {
    ParameterError: _refused,
    QueryError: _refused,
    StagescopeError: _refused,
    NothingThereError: _nothing,
    GoneError: _gone,
    TooManyError: _too_many,
}
