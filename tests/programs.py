"""External programs that some tests need, and how a missing one is handled."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

ALTERNATIVES: dict[str, tuple[str, ...]] = {
    "chromium": ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
}
"""Names under which distributions install the same program."""


def require_program(name: str) -> Path:
    """Return the path of a program; if it is missing, skip the calling test, or fail it under ``CI=true``.

    Skipping lets developers work without a browser. In continuous integration a skip would silently drop coverage.
    """
    found = next(filter(None, map(shutil.which, ALTERNATIVES.get(name, (name,)))), None)
    if found is not None:
        return Path(found)
    return missing(f"needs the program {name!r}, which is not on PATH (.ci/run installs it on Debian)")


def missing(reason: str) -> NoReturn:
    """Skip the calling test with `reason`, or fail it under ``CI=true``. Does not return."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason}; a missing program is a failure when CI=true", pytrace=False)
    pytest.skip(reason)
