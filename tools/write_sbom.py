# noqa: INP001 - a script, not a package
"""Write sbom.cdx.json, the software bill of materials that is part of the wheel (CycloneDX 1.6, PEP 770).

    python tools/write_sbom.py

The bundled packages have the exact versions of web/package-lock.json. The required packages have the range that
pyproject.toml allows, because the installer chooses their versions. Nothing else enters, not even the time, so that
the same source gives the same file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "sbom.cdx.json"
REQUIREMENT = re.compile(r"([\w-]+)(>=[\d.]+)(?:; .*)?")


def main() -> None:
    """Write the file."""
    OUTPUT.write_text(text(), encoding="utf-8")


def text() -> str:
    """Return the content of the file. Raises SystemExit if tools/dependencies.toml is not complete."""
    project = _toml("pyproject.toml")["project"]
    listed = _toml("tools/dependencies.toml")
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    bundled = {
        name.removeprefix("node_modules/"): entry["version"]
        for name, entry in lock.items()
        if name and not entry.get("dev") and not entry.get("peer")
    }
    required = dict(REQUIREMENT.fullmatch(each).groups() for each in project["dependencies"])  # type: ignore[union-attr]
    for what, found in (("python", required), ("bundled", bundled)):
        if listed[what].keys() != found.keys():
            raise SystemExit(f"tools/dependencies.toml: {what} differs from {sorted(found)}")
    root = {
        **_component(project["name"], f"pkg:pypi/{project['name']}@{project['version']}", project["license"]),
        "type": "application",
        "version": project["version"],
    }
    components = [
        {**_listed(name, f"pkg:npm/{quote(name, safe='/')}@{version}", listed["bundled"]), "version": version}
        for name, version in sorted(bundled.items())
    ]
    components += [
        {**_listed(name, f"pkg:pypi/{name}", listed["python"]), "properties": [_range(bounds)]}
        for name, bounds in sorted(required.items())
    ]
    content = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": [{"ref": root["bom-ref"], "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(content, indent=2) + "\n"


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / name).read_text(encoding="utf-8"))


def _listed(name: str, purl: str, listed: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return a component with the license and source that are listed for it."""
    source = {"type": "vcs", "url": listed[name]["source"]}
    return {**_component(name, purl, listed[name]["license"]), "externalReferences": [source]}


def _component(name: str, purl: str, license_expression: str) -> dict[str, Any]:
    licenses = [{"expression": license_expression}]
    return {"type": "library", "bom-ref": purl, "name": name, "licenses": licenses, "purl": purl}


def _range(bounds: str) -> dict[str, str]:
    return {"name": "stagescope:requires", "value": bounds}


if __name__ == "__main__":
    main()
