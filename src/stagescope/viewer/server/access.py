"""Authentication: a link that works once is exchanged for a session cookie.

Other users of a shared machine can reach its loopback interface, and any web page can make a browser send requests
there. Therefore every request is checked, in this order and before its path is looked at: the Host is this server's
(against DNS rebinding), no foreign Origin and no Upgrade, a read-only method, and the cookie. None of the checks can
be turned off. A refused request gets one sentence and no data of the run.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qs

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKEN_BYTES = 32
"""256 bits, as many as a session key of TLS has."""

METHODS = ("GET", "HEAD")
OK, SEE_OTHER, FORBIDDEN, METHOD_NOT_ALLOWED = 200, 303, 403, 405
OWN_FETCHES = ("same-origin", "none")
"""Values of Sec-Fetch-Site for requests of the viewer's own page and for typed or opened addresses."""

# Not a redirect: after a redirect, a browser that another program opened still treats the navigation as cross-site
# and withholds a SameSite=Strict cookie. A page of this server that refreshes to / is same-site.
ARRIVED = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=/">
<link rel="icon" href="data:,">
<title>stagescope</title>
<a href="/">Open the viewer</a>
"""

UNKNOWN_VISITOR = (
    "Open the viewer with the link that stagescope printed. "
    "It works once; run the command again for a new one.\n"
)


class Asked(NamedTuple):
    """The parts of a request that are checked: method, decoded path, query, and headers with lower-case names."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """A response of the gate: status, text and headers."""

    status: int
    text: str
    headers: Mapping[str, str]


@dataclass
class Access:
    """The secrets of one server, and whether its link has been used."""

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    token_used: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """The accepted values of Host."""
        return tuple(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    @property
    def cookie_name(self) -> str:
        """Name of the cookie. It includes the port, because browsers share cookies between ports of one host."""
        return f"stagescope-{self.port}"

    def link(self, host: str) -> str:
        """Return the address that opens the viewer once."""
        return f"http://{host}:{self.port}/?token={self.token}"

    def check(self, asked: Asked) -> Answer | None:
        """Return the response to send instead of handling the request; None lets it pass.

        Exchanging the token for the cookie invalidates the token.
        """
        return self._refuse_stranger(asked) or self._trade_token(asked) or self._refuse_unknown(asked)

    def _refuse_stranger(self, asked: Asked) -> Answer | None:
        """Return the refusal of a request that neither the viewer's page nor its user would send."""
        headers = asked.headers
        if headers.get("host", "").lower() not in self.hosts:
            return _refused("This server accepts requests to its loopback address only.\n")
        if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in self.hosts}:
            return _refused("This server accepts requests from its own pages only.\n")
        if "upgrade" in headers:
            return _refused("This server supports plain HTTP only.\n")
        # A page of another port is "same-site" and would send the cookie along with an image or a script.
        if asked.path != "/" and headers.get("sec-fetch-site", "none") not in OWN_FETCHES:
            return _refused("This server accepts requests from its own pages only.\n")
        if asked.method not in METHODS:
            return Answer(METHOD_NOT_ALLOWED, "This server is read-only.\n", {"Allow": ", ".join(METHODS)})
        return None

    def _trade_token(self, asked: Asked) -> Answer | None:
        """Return the page that sets the cookie and continues at an address without the token."""
        offered = parse_qs(asked.query).get("token") if asked.path == "/" else None
        if not offered:
            return None
        if self._is_known(asked):
            return Answer(SEE_OTHER, "", {"Location": "/"})
        is_right = secrets.compare_digest(offered[0].encode(), self.token.encode())
        if not is_right or self.token_used or asked.method != "GET":
            return _refused(UNKNOWN_VISITOR)
        self.token_used = True
        cookie = f"{self.cookie_name}={self.session}; Path=/; HttpOnly; SameSite=Strict"
        return Answer(OK, ARRIVED, {"Content-Type": "text/html; charset=utf-8", "Set-Cookie": cookie})

    def _refuse_unknown(self, asked: Asked) -> Answer | None:
        return None if self._is_known(asked) else _refused(UNKNOWN_VISITOR)

    def _is_known(self, asked: Asked) -> bool:
        """Return whether a request carries this server's cookie."""
        try:
            cookie = SimpleCookie(asked.headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return False
        return cookie is not None and secrets.compare_digest(cookie.value.encode(), self.session.encode())


def _refused(text: str) -> Answer:
    return Answer(FORBIDDEN, text, {})
