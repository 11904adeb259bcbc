"""Where the tests find what they need: the repository, the package, test data and helper scripts."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DATA = TESTS / "data"
DOCS = ROOT / "docs"
PACKAGE = ROOT / "src" / "stagescope"
TOOLS = ROOT / "tools"
WEB = ROOT / "web"
