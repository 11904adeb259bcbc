"""Pictures of the page in a real browser, if one is installed; else the demo goes on without them."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.demo_live.session import DemoError

if TYPE_CHECKING:
    from typing_extensions import Self

SIZE = {"width": 1280, "height": 800}
PATIENCE_MS = 30_000
SHORTEN = """(folder) => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        if (text.data.includes(folder)) text.data = text.data.replaceAll(folder, '');
    }
}"""
"""Paths relative to the working directory, as the session has them."""


class Pictures:
    """The page in a browser. Without Playwright or Chromium, nothing happens."""

    def __init__(self, directory: Path) -> None:
        """Write pictures to a directory."""
        self._directory = directory
        self._stack = ExitStack()
        self._page: Any = None

    def open(self, link: str) -> None:
        """Open a link."""
        program = os.environ.get("STAGESCOPE_CHROMIUM") or shutil.which("chromium")
        if program is None:
            return
        try:
            from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only if it is installed
        except ImportError:
            return
        playwright = self._stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"],
            ignore_default_args=["--hide-scrollbars"],
        )  # fmt: skip
        self._stack.callback(browser.close)
        self._page = browser.new_page(viewport=SIZE)
        self._page.goto(link)
        self._page.wait_for_function("() => window.stagescopeViewer && document.querySelector('.live-bar')")

    def take(self, name: str, selector: str | None = None) -> None:
        """Write a picture as soon as the page has what a selector selects."""
        if self._page is None:
            return
        if selector is not None:
            self._wait_for(selector)
        self._page.wait_for_timeout(500)
        self._page.evaluate(SHORTEN, f"{Path.cwd()}/")
        self._page.screenshot(path=self._directory / f"{name}.png")

    def _wait_for(self, selector: str) -> None:
        from playwright.sync_api import TimeoutError as TooLateError  # noqa: PLC0415 - as above

        try:
            self._page.locator(selector).first.wait_for(timeout=PATIENCE_MS)
        except TooLateError:
            self._page.screenshot(path=self._directory / "late.png")
            raise DemoError(f"the page does not show {selector}: see late.png") from None

    def __enter__(self) -> Self:
        """Return the pictures."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the browser."""
        self._stack.close()
