"""What is bundled and what is required: licenses, lower bounds, and that the documents list them."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "src" / "stagescope" / "viewer" / "assets"


def test_the_viewer_contains_the_license_of_every_package_that_it_bundles():
    bundled = json.loads((ROOT / "web" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    notices = (ASSETS / "viewer.licenses.txt").read_text(encoding="utf-8")
    for name, version in bundled.items():
        assert f"{name} {version} (MIT)" in notices
    assert notices.count("Permission is hereby granted") > len(bundled)  # one is required by another
    assert (ASSETS / "viewer.js").read_text(encoding="utf-8").startswith(f"/*!\n{notices}*/\n")
