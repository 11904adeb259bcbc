"""The gate, over real sockets: clients without access get no data of the run."""

import re
import socket
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from drawing import timeline_from_text
from running_server import assets_in, resting, run_of, serving

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
SECRET = "the secret of somebody else"  # noqa: S105 - no password


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with a run, assets, and secrets that the server must not expose."""
    folder = tmp_path_factory.mktemp("gate")
    secret = folder / "secret"
    secret.write_text(SECRET)
    assets = assets_in(folder / "assets")
    (assets / "linked.js").symlink_to(secret)
    run = run_of(timeline_from_text("F0 B0\nF0 B0"), folder / "run")
    (folder / "run" / "linked").symlink_to(secret)
    return assets, run


@pytest.fixture(scope="module")
def server(place):
    assets, run = place
    with serving(resting(run), assets) as stranger:
        yield stranger


@pytest.fixture(scope="module")
def known(server):
    return server.enter()


@pytest.fixture
def stranger(known):
    return replace(known, cookie="")


PATHS = [
    "/",
    "/viewer.js",
    "/viewer.css",
    "/run/run/",
    "/run/run/api/meta",
    "/run/run/api/details?id=0",
    "/nothing",
]


@pytest.mark.parametrize("path", PATHS)
def test_without_the_cookie_there_is_nothing_but_a_sentence(stranger, path):
    status, headers, body = stranger.ask(path)
    assert (status, headers["content-type"]) == (403, "text/plain; charset=utf-8")
    assert body.startswith(b"Open the viewer with the link that stagescope printed")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", ["known", "stranger", "foreign", "post"])
def test_every_answer_has_the_headers_that_keep_browsers_in_bounds(known, stranger, path, case):
    asks = {
        "known": lambda: known.ask(path),
        "stranger": lambda: stranger.ask(path),
        "foreign": lambda: known.ask(path, Origin="http://evil.example"),
        "post": lambda: known.ask(path, method="POST"),
    }
    _, headers, _ = asks[case]()
    assert {name: headers.get(name) for name in HEADERS} == HEADERS
    assert "server" not in headers
    assert not [name for name in headers if name.startswith("access-control-")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "localhost:{port}"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:{port}"}, 200),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
        ({"Upgrade": "websocket", "Connection": "Upgrade"}, 403),
        ({"Cookie": "stagescope-{port}=wrong"}, 403),
    ],
)
def test_a_host_or_page_of_somebody_else_gets_nothing_even_from_a_browser_with_the_cookie(
    known, headers, status
):
    filled = {name: value.format(port=known.port) for name, value in headers.items()}
    found, _, body = known.ask("/run/run/api/meta", **filled)
    assert found == status
    assert (b"base_ns" in body) == (status == 200)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_nothing_can_be_changed(known, method):
    status, headers, body = known.ask("/run/run/api/meta", method=method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    assert b"base_ns" not in body


def test_a_request_for_the_head_alone_gets_no_body(known):
    status, headers, body = known.ask("/run/run/api/meta", method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 100


@pytest.mark.parametrize(
    "path",
    [
        "/../secret", "/assets/linked.js", "/linked.js", "/viewer.js/../linked.js", "/%2e%2e/secret", "/..%2fsecret",
        "/%2e%2e%2f%2e%2e%2fetc/passwd", "/....//secret", "//etc/passwd", "/etc/passwd", "/viewer.js%00", "/.",
        "/run/..%2f..%2fsecret/", "/run/run/../../secret", "/run/run/api/../../../secret", "/run/run/linked",
        "/run/run/api/section?name=../../secret", "/run/run/api/section?name=linked", "/run/run/meta.json",
        "/run/run/api/section?name=%2e%2e%2fsecret", "http://127.0.0.1/etc/passwd", "/run/run/spans", "/\\secret",
    ],
)  # fmt: skip
def test_paths_lead_to_no_file(known, path):
    status, headers, body = known.ask(path)
    assert status in {303, 400, 403, 404, 410}
    assert SECRET.encode() not in body
    assert b"root:" not in body
    # What is no version of the run leads to the one that there is.
    assert headers.get("location", "/run/run/") == "/run/run/"


def test_a_websocket_is_not_opened(known):
    head = (
        f"GET /run/run/api/meta HTTP/1.1\r\nHost: 127.0.0.1:{known.port}\r\nCookie: {known.cookie}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", known.port), timeout=30) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"base_ns" not in answer


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: 127.0.0.1:PORT\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"NONSENSE\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n" + b"a: b\r\n" * 40_000 + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["no host", "two hosts", "no cookie", "TLS", "nonsense", "long path", "many headers", "HTTP/2"],
)
def test_requests_that_are_none_are_refused_and_the_next_one_is_served(known, data):
    try:
        answer = known.raw(data.replace(b"PORT", str(known.port).encode()))
    except ConnectionError:
        answer = b"HTTP/1.1 400 "
    assert re.match(rb"HTTP/1\.1 4(00|03|31) ", answer)
    assert b"base_ns" not in answer
    assert b"Traceback" not in answer
    assert known.ask("/run/run/api/meta")[0] == 200


def test_the_link_has_worked_once_and_does_not_again(stranger):
    parts = urlsplit(stranger.link)
    status, headers, _ = stranger.ask(f"/?{parts.query}")
    assert status == 403
    assert "set-cookie" not in headers


def test_a_wrong_link_does_not_let_in(stranger):
    assert stranger.ask("/?token=" + "A" * 43)[0] == 403
