"""Who may ask: this machine's user alone, by a link that works once and the cookie that it is traded for.

Other users of a shared machine reach its loopback too, and any page that a browser shows can send requests there. So
a request needs all of these, checked in this order before anything looks at its path: a Host that is this server's
own (a name made to resolve to 127.0.0.1 has another one), no foreign Origin and no Upgrade, a method that reads, and
the cookie. None of them can be turned off. What is refused gets a sentence and nothing of the run.
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
"""What a browser calls requests of the viewer's own page, and those that a person typed or opened."""

# A redirect would do no good here: a browser that was led to this server by another program still counts the page
# after it as asked for from outside, and keeps a SameSite=Strict cookie back. A page of this server's own leads on.
ARRIVED = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url=/">
<link rel="icon" href="data:,">
<title>stagescope</title>
<a href="/">Open the viewer</a>
"""

UNKNOWN_VISITOR = (
    "This viewer opens by the link that stagescope printed, which works once. Run it again for another.\n"
)


class Asked(NamedTuple):
    """What the gate looks at: method, decoded path, query and headers in small letters."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]


class Answer(NamedTuple):
    """What the gate answers itself: a status, a sentence, and headers."""

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
        """The only values of Host that this server answers to."""
        return tuple(f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]"))

    @property
    def cookie_name(self) -> str:
        """Name of the cookie: browsers keep those of all ports together, so that it says which."""
        return f"stagescope-{self.port}"

    def link(self, host: str) -> str:
        """Return the address that opens the viewer once."""
        return f"http://{host}:{self.port}/?token={self.token}"

    def check(self, asked: Asked) -> Answer | None:
        """Return what to answer instead of what was asked for; None lets the request through.

        Trading the token for the cookie uses the token up.
        """
        return self._refuse_stranger(asked) or self._trade_token(asked) or self._refuse_unknown(asked)

    def _refuse_stranger(self, asked: Asked) -> Answer | None:
        """Return the refusal of a request that this server's page or a person would not have sent."""
        headers = asked.headers
        if headers.get("host", "").lower() not in self.hosts:
            return _refused("This server answers to its loopback address alone.\n")
        if "origin" in headers and headers["origin"] not in {f"http://{host}" for host in self.hosts}:
            return _refused("This server answers to its own pages alone.\n")
        if "upgrade" in headers:
            return _refused("This server speaks HTTP alone.\n")
        # A page of another port is "same-site" and would send the cookie along with an image or a script.
        if asked.path != "/" and headers.get("sec-fetch-site", "none") not in OWN_FETCHES:
            return _refused("This server answers to its own pages alone.\n")
        if asked.method not in METHODS:
            return Answer(METHOD_NOT_ALLOWED, "This server is read only.\n", {"Allow": ", ".join(METHODS)})
        return None

    def _trade_token(self, asked: Asked) -> Answer | None:
        """Return the page that hands out the cookie for the token and leads on to an address without it."""
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
        """Tell whether a request carries this server's cookie."""
        try:
            cookie = SimpleCookie(asked.headers.get("cookie", "")).get(self.cookie_name)
        except CookieError:
            return False
        return cookie is not None and secrets.compare_digest(cookie.value.encode(), self.session.encode())


def _refused(text: str) -> Answer:
    return Answer(FORBIDDEN, text, {})
