# noqa: INP001 - a script, not a package
"""Print the lowest versions that pyproject.toml allows, one requirement per line, for `make test-lowest`."""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXTRAS = ("pdf", "store")
"""Optional dependencies of which `make test-lowest` has tests as well."""


def requirements(allowed: list[str]) -> list[str]:
    """Return requirements with their lower bound as the only version. Raises SystemExit for one without a bound."""
    for requirement in allowed:
        if ">=" not in requirement:
            raise SystemExit(f"no lower bound: {requirement}")
    return [requirement.replace(">=", "==") for requirement in allowed]


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    allowed = [
        *project["dependencies"],
        *(each for name in EXTRAS for each in project["optional-dependencies"][name]),
    ]
    sys.stdout.write("\n".join(requirements(allowed)) + "\n")
