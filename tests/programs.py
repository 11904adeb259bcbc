"""The programs that some tests need beside Python, and what happens where one is missing."""

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
    """Return the path of a program; without it the calling test is skipped, and fails under ``CI=true``.

    A skip is a courtesy to whoever works without a browser. In continuous integration it would be a proof
    that silently stopped being made.
    """
    found = next(filter(None, map(shutil.which, ALTERNATIVES.get(name, (name,)))), None)
    if found is not None:
        return Path(found)
    return missing(f"needs the program {name!r}, which is not on PATH (.ci/run installs it on Debian)")


def missing(reason: str) -> NoReturn:
    """Skip the calling test with `reason`, or fail it under ``CI=true``; never returns."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{reason}; with CI=true that is a failure", pytrace=False)
    pytest.skip(reason)
