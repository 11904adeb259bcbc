"""Slow clients and too many connections, over real sockets: they are closed, and others are served."""

import socket
import time
from contextlib import ExitStack

import pytest

from drawing import timeline_from_text
from running_server import assets_in, resting, run_of, serving
from stagescope.viewer.server import connections
from stagescope.viewer.server.app import PAGE
from stagescope.viewer.server.serve import ACCEPTED_AT_ONCE

HEAD = b"GET /run/run/ HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nCookie: %s\r\n"


@pytest.fixture
def known(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(connections, "STALL_SECONDS", 0.5)
    assets = assets_in(tmp_path / "assets")
    (assets / "viewer.js").write_bytes(b" " * 50_000_000)
    run = run_of(timeline_from_text("F0 B0"), tmp_path / "run")
    with serving(resting(run), assets) as visitor:
        yield visitor.enter()


def connect(known):
    return socket.create_connection(("127.0.0.1", known.port), timeout=30)


def head_of(known):
    return HEAD % (known.port, known.cookie.encode())


def is_let_go(connection):
    """Wait for the end of a connection; a test that waits for nothing else fails by the socket's timeout."""
    try:
        return connection.recv(65536) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("begin", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_who_asks_for_nothing_whole_is_let_go(known, begin):
    with connect(known) as connection:
        connection.sendall(begin)
        assert is_let_go(connection)
    assert known.ask("/run/run/")[0] == 200


def test_a_request_that_comes_byte_by_byte_buys_no_time(known):
    with connect(known) as connection:
        let_go = False
        for byte in head_of(known) * 3:
            try:
                connection.sendall(bytes([byte]))
                connection.settimeout(0.02)
                let_go = connection.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                let_go = True
            if let_go:
                break
        assert let_go


def test_a_request_whose_body_never_comes_is_answered_and_let_go(known):
    with connect(known) as connection:
        connection.sendall(head_of(known) + b"Content-Length: 1000000\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_unread_response_is_aborted_and_others_are_served(known):
    with connect(known) as connection:
        connection.sendall(head_of(known).replace(b"/run/run/", b"/viewer.js") + b"\r\n")
        assert known.ask("/run/run/")[2] == PAGE.format(language="en").encode()
        # Long after the answer was given up, what the system had taken of it can still be read, and no more.
        time.sleep(1.0)
        received = 0
        with pytest.raises(ConnectionError):  # noqa: PT012 - whichever call notices
            while data := connection.recv(1 << 20):
                received += len(data)
            raise ConnectionError
    assert received < 50_000_000


def test_an_answer_that_is_read_in_time_comes_whole(known):
    assert len(known.ask("/viewer.js")[2]) == 50_000_000


def test_too_many_connections_close_the_oldest_idle_one(known, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 60)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    first = connect(known)
    others = [connect(known) for _ in range(40)]
    try:
        assert is_let_go(first)
        assert known.ask("/run/run/")[0] == 200
        others[-1].sendall(head_of(known) + b"\r\n")
        assert others[-1].recv(12) == b"HTTP/1.1 200"
    finally:
        for one in [first, *others]:
            one.close()


def test_connections_are_used_again(known):
    with connect(known) as connection:
        for _ in range(3):
            connection.sendall(head_of(known) + b"\r\n")
            answer = b""
            while not answer.endswith(b"</html>\n"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200 ")


def test_a_burst_of_connections_never_opens_many_more_than_allowed(known, monkeypatch):
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 60)
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 20)
    open_at_once = []
    made = connections.LimitedConnection.connection_made

    def counted(self, transport):
        made(self, transport)
        open_at_once.append(len(self.connections))

    monkeypatch.setattr(connections.LimitedConnection, "connection_made", counted)
    with ExitStack() as opened:
        for _ in range(120):  # fewer than may wait in the system
            one = opened.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", known.port))
        assert known.ask("/run/run/")[0] == 200
    assert len(open_at_once) > 100
    assert max(open_at_once) <= 20 + 4 * ACCEPTED_AT_ONCE


def test_few_connections_are_open_where_a_process_may_open_few_files(monkeypatch):
    for limit, most in ((1024, 256), (300, 172), (64, 16), (-1, 256)):
        monkeypatch.setattr(connections.resource, "getrlimit", lambda _, limit=limit: (limit, -1))
        assert connections.most_connections() == most
    monkeypatch.setattr(connections, "resource", None)
    assert connections.most_connections() == 256
