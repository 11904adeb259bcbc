# noqa: INP001 - a script, not a package
"""Look up known vulnerabilities of the packages that stagescope requires or bundles: audit.py PIP_AUDIT.

The exit status is 1 if there are any, with one line for each. What cannot be looked up, without the network or where
an index does not offer it, is listed as skipped and is no failure: continuous integration has to work offline.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
LIMIT_S = 120


def main(pip_audit: str) -> int:
    """Print what was found and what was skipped; return 1 for a vulnerability."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split("[>=]", requirement)[0] for requirement in project["dependencies"]]
    pinned = "".join(f"{name}=={metadata.version(name)}\n" for name in names)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(pinned)
        file.flush()
        words = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
        python = answer([pip_audit, *words, "--requirement", file.name], ROOT)
    npm = answer(["npm", "audit", "--omit=dev", "--json"], ROOT / "web")
    found, skipped = of_python(python, names)
    more, also_skipped = of_npm(npm)
    for line in [*found, *more]:
        sys.stdout.write(f"vulnerable: {line}\n")
    for line in [*skipped, *also_skipped]:
        sys.stdout.write(f"skipped: {line}\n")
    if not (found or more or skipped or also_skipped):
        sys.stdout.write("No known vulnerabilities.\n")
    return 1 if found or more else 0


def of_python(answered: Any, names: list[str]) -> tuple[list[str], list[str]]:
    """Return the vulnerabilities that pip-audit reported, and the packages that it could not look up."""
    entries = {entry["name"]: entry for entry in (answered or {}).get("dependencies", ())}
    unknown = [name for name in names if "vulns" not in entries.get(name, {})]
    found = [
        f"{name} {entry['version']}: {each['id']}"
        for name, entry in entries.items()
        for each in entry.get("vulns", ())
    ]
    return found, [f"pip-audit could not look up {', '.join(unknown)}"] if unknown else []


def of_npm(answered: Any) -> tuple[list[str], list[str]]:
    """Return the vulnerabilities that npm reported, and a line if it could not look them up."""
    if "vulnerabilities" not in (answered or {}):
        return [], ["npm audit could not look up the packages of the viewer"]
    return [f"{name}: {entry['severity']}" for name, entry in answered["vulnerabilities"].items()], []


def answer(command: list[str], folder: Path) -> Any:
    """Return the JSON that a program prints; None if it does not start, does not end, or prints something else."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
