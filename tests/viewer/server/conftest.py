"""The browser in which pages of the local server are opened."""

from __future__ import annotations

import pytest
from playwright.sync_api import sync_playwright

from consumers import CHROMIUM_OPTIONS
from programs import require_program


@pytest.fixture(scope="module")
def browser():
    """Return Debian's chromium, with visible scrollbars, which Playwright hides by default."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=str(require_program("chromium")),
            headless=True,
            args=CHROMIUM_OPTIONS,
            ignore_default_args=["--hide-scrollbars"],
        )
        yield chromium
        chromium.close()
