"""A real browser, without a network and with one font, and pages of one run for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest

from consumers import CHROMIUM_OPTIONS
from programs import require_program
from stagescope.model import CLOCKS, Timeline
from stagescope.model.validate import conform
from stagescope.viewer.analysis_data import gather_extras
from stagescope.viewer.page import write_html
from synthetic import Shape, pipeline_timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FONT_FOLDER = "/usr/share/fonts/truetype/dejavu"
FONTS = f"""<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{FONT_FOLDER}</dir>
  <match><edit name="family" mode="assign" binding="strong"><string>DejaVu Sans</string></edit></match>
  <match target="font"><edit name="antialias" mode="assign"><bool>true</bool></edit></match>
  <cachedir prefix="xdg">stagescope-test-fonts</cachedir>
</fontconfig>
"""
READY = """() => document.querySelector('.failure') ||
    (window.stagescopeViewer && window.stagescopeViewer.display.size.value.width !== 900 &&
     document.querySelector('.canvas-box canvas'))"""
FRAMES = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(done), 20)))"
SPOT = """(id) => {
    const v = window.stagescopeViewer, spans = v.source.spans, place = spans.place(id);
    const box = document.querySelector('.canvas-box canvas').getBoundingClientRect();
    const view = v.camera.view.value, row = v.display.rows.value.placed.find((one) => one.row === spans.row[place]);
    const at = (time) => box.left + ((time - view.start) / (view.end - view.start)) * v.display.size.value.width;
    return { x: at(spans.start[place] + spans.duration[place] / 2), left: at(spans.start[place]),
             right: at(spans.end(place)), y: box.top + 34 + row.top - v.display.scroll.value + row.height * 0.4 };
}"""
ID = """([kind, stage, microbatch, step]) => {
    const v = window.stagescopeViewer, t = v.source.spans.table;
    const code = v.meta.kinds.find((one) => one.name === kind).code;
    for (let i = 0; i < t.rows; i++)
        if (v.source.spans.kind[i] === code && t.ints('stage')[i] === stage && t.ints('microbatch')[i] === microbatch &&
            t.ints('step')[i] === step) return i;
    return -1;
}"""


@dataclass
class ViewerPage:
    """One page of the viewer in the browser, with its requests and logged errors."""

    page: Any
    options: dict[str, Any]
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def of(self, expression: str) -> Any:
        """Return a value of the viewer: `of("view.value.start")`."""
        return self.page.evaluate(f"() => window.stagescopeViewer.{expression}")

    def settle(self) -> None:
        """Wait until what was done is on the screen."""
        self.page.evaluate(FRAMES)

    def press(self, key: str) -> None:
        """Press a key and wait for the picture."""
        self.page.keyboard.press(key)
        self.settle()

    def id(self, kind: str, stage: int, microbatch: int, step: int = 1) -> int:
        """Return the id of an action; the page opens at step 1."""
        return int(self.page.evaluate(ID, [kind, stage, microbatch, step]))

    def spot(self, span_id: int) -> dict[str, float]:
        """Return where a span is on the page: x, y of its middle, left and right."""
        return dict(self.page.evaluate(SPOT, span_id))

    def click(self, span_id: int) -> None:
        """Click a span and wait for its details."""
        at = self.spot(span_id)
        self.page.mouse.click(at["x"], at["y"])
        self.page.wait_for_function(
            f"() => window.stagescopeViewer.selection.chain.value && {self.js_selected()} === {span_id}"
        )
        self.settle()

    @staticmethod
    def js_selected() -> str:
        return "window.stagescopeViewer.selection.selected.value?.id"

    def facts(self, title: str) -> dict[str, str]:
        """Return the names and values that a section of the side panel shows."""
        section = self.page.locator("details.section", has=self.page.locator("h2", has_text=title)).first
        names = section.locator("dl.facts dt").all_inner_texts()
        return dict(zip(names, section.locator("dl.facts dd").all_inner_texts(), strict=True))


def synthetic_run() -> Timeline:
    """Return 3 steps of 1F1B on 4 ranks and 2 machines, the second one's clock known to 200 us."""
    timeline = pipeline_timeline(Shape(ranks=4, microbatches=8, steps=3))
    clocks = pl.DataFrame(
        {"clock": ["a", "b"], "machine": ["node-0", "node-1"], "offset_ns": [0, 5_000],
         "method": ["reference", "messages"], "error_lo_ns": [0, -200_000], "error_hi_ns": [0, 150_000]}
    )  # fmt: skip
    return replace(timeline, clocks=conform(clocks, CLOCKS))


@pytest.fixture(scope="session")
def run() -> Timeline:
    return synthetic_run()


@pytest.fixture(scope="session")
def make_page(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that writes the page of a timeline, with its analysis."""
    folder = tmp_path_factory.mktemp("pages")

    def make(name: str, timeline: Timeline, *, analyzed: bool = True) -> Path:
        path = folder / f"{name}.html"
        write_html(timeline, path, gather_extras(timeline) if analyzed else None)
        return path

    return make


@pytest.fixture(scope="session")
def run_page(make_page: Callable[..., Path], run: Timeline) -> Path:
    return make_page("run", run)


# Not for the session: two of Playwright's drivers cannot be open in one process, and other tests open theirs.
@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    executable = str(require_program("chromium"))
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - slow, and not needed where skipped

    fonts = tmp_path_factory.mktemp("fonts") / "fonts.conf"
    fonts.write_text(FONTS, encoding="utf-8")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=executable, headless=True, env={**os.environ, "FONTCONFIG_FILE": str(fonts)},
            args=[*CHROMIUM_OPTIONS, "--font-render-hinting=none", "--disable-lcd-text", "--force-color-profile=srgb"],
        )  # fmt: skip
        yield launched
        launched.close()


def complains(message: Any) -> bool:
    """Return whether a console message is an error of the page; reading the canvas in tests causes a known warning."""
    return message.type in ("error", "warning") and "willReadFrequently" not in message.text


class PagePool:
    """Blank pages of a browser by their options, each used by many tests.

    A new page needs a new process of the browser: 0.9 s of CPU time, where loading a run in an open page costs 0.3 s.
    The viewer stores nothing but its address, so loading the page again resets everything.
    """

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.idle: dict[str, list[ViewerPage]] = {}

    def take(self, options: dict[str, Any]) -> ViewerPage:
        """Return a blank page whose context has these options."""
        idle = self.idle.setdefault(repr(options), [])
        shown = idle.pop() if idle else self.create(options)
        # A test may have changed what is emulated.
        shown.page.emulate_media(media="null", color_scheme=options.get("color_scheme", "light"))
        return shown

    def create(self, options: dict[str, Any]) -> ViewerPage:
        page = self.browser.new_context(offline=True, **options).new_page()
        shown = ViewerPage(page, options)
        page.on("request", lambda request: shown.requests.append(request.url))
        page.on("console", lambda message: complains(message) and shown.complaints.append(message.text))
        page.on("pageerror", lambda error: shown.complaints.append(str(error)))
        return shown

    def give_back(self, shown: ViewerPage) -> None:
        """Leave the run, so that an idle page costs nothing, and keep the page for the next test."""
        shown.page.goto("about:blank")
        shown.page.mouse.move(0, 0)
        shown.requests.clear()
        shown.complaints.clear()
        self.idle[repr(shown.options)].append(shown)


@pytest.fixture(scope="module")
def pool(browser: Any) -> PagePool:
    return PagePool(browser)


@pytest.fixture
def open_page(pool: PagePool) -> Iterator[Callable[..., ViewerPage]]:
    """Return a function that opens a file offline; it must neither request anything else nor log an error."""
    opened: list[tuple[ViewerPage, bool]] = []

    def open_(path: Path, hash_: str = "", *, may_complain: bool = False, **options: Any) -> ViewerPage:
        settings = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce", **options}
        shown = pool.take(settings)
        opened.append((shown, may_complain))
        shown.page.goto(path.as_uri() + (f"#{hash_}" if hash_ else ""))
        shown.page.wait_for_function(READY)
        shown.settle()
        shown.settle()
        return shown

    yield open_
    for shown, may_complain in opened:
        assert [url for url in shown.requests if not url.startswith(("file:", "blob:", "data:"))] == []
        assert len([url for url in shown.requests if url.startswith("file:")]) == 1
        assert may_complain or shown.complaints == []
        pool.give_back(shown)


@pytest.fixture
def shown(open_page: Callable[..., ViewerPage], run_page: Path) -> ViewerPage:
    """The run's page as it opens."""
    return open_page(run_page)


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the script of axe-core, which the package axe-playwright-python carries."""
    return (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
