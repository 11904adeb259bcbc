"""A real server on the loopback for a test, and visitors who ask it over real sockets."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from stagescope.viewer.server.live import LiveRun, Opener
from stagescope.viewer.server.serve import Listening, listen
from stagescope.viewer.tiles.run import open_run
from stagescope.viewer.tiles.sources import save_timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stagescope.exporters.layers import AnalysisLayers
    from stagescope.model import Timeline
    from stagescope.viewer.tiles.run import RunView

PATIENCE_S = 30
"""How long a test waits for an answer before it fails; nothing is expected to take this long."""


def run_of(timeline: Timeline, folder: Path, extras: AnalysisLayers | None = None) -> RunView:
    """Return the run that the server shows of a timeline, its files in `folder`, which is made."""
    folder.mkdir(parents=True)
    save_timeline(timeline, folder, extras)
    return open_run(folder)


def assets_in(folder: Path) -> Path:
    """Return a folder with a script and a style sheet that differ from the real ones."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "viewer.js").write_text("// the script", encoding="utf-8")
    (folder / "viewer.css").write_text("/* the style */", encoding="utf-8")
    return folder


def resting(run: RunView) -> LiveRun:
    """Return a run whose files never change."""
    return LiveRun(Opener(lambda: "", lambda: run), run, "")


@dataclass
class Visitor:
    """Somebody who asks a server; `cookie` is sent along once there is one."""

    port: int
    link: str
    version: str = ""
    cookie: str = ""
    host: str = "127.0.0.1"

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers in small letters and body."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        own = {"Cookie": self.cookie} if self.cookie else {}
        spelled = {name.replace("_", "-"): value for name, value in headers.items()}
        try:
            connection.request(method, path, headers={**own, **spelled})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def enter(self) -> Visitor:
        """Follow the link as a browser does, and keep the cookie."""
        parts = urlsplit(self.link)
        status, headers, _ = self.ask(f"{parts.path}?{parts.query}")
        assert status == 200
        self.cookie = headers["set-cookie"].partition(";")[0]
        return self

    def api(self, what: str, /, **question: Any) -> tuple[int, bytes]:
        """Return status and body of a question about the run."""
        query = f"?{urlencode(question)}" if question else ""
        status, _, body = self.ask(f"/run/{self.version}/api/{what}{query}")
        return status, body

    def json(self, what: str, /, **question: Any) -> Any:
        """Return the answer to a question, which has to be a good one."""
        status, body = self.api(what, **question)
        assert status == 200, body
        return json.loads(body)

    def raw(self, data: bytes) -> bytes:
        """Return everything that the server sends in response to some bytes."""
        with socket.create_connection((self.host, self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(data)
            return b"".join(iter(lambda: connection.recv(65536), b""))


@contextmanager
def serving(
    live: LiveRun, assets: Path, host: str = "127.0.0.1", query: Callable[[str], Any] | None = None
) -> Iterator[Visitor]:
    """Run a server in a thread, for a visitor who has not entered yet; it has ended when the block has."""
    listening: Listening = listen(live, host, assets=assets, query=query)
    thread = threading.Thread(target=listening.run)
    thread.start()
    try:
        port = listening.socket.getsockname()[1]
        yield Visitor(port, listening.link, live.current.version, host=host)
    finally:
        listening.server.should_exit = True
        thread.join(PATIENCE_S)
        listening.socket.close()
        assert not thread.is_alive()
