# noqa: INP001 - a script, not a package
"""Check that reading, analysis, export and viewing use nothing that macOS or Windows do not have.

    python tools/check_platforms.py [PATH...]

Type checks all but the recorder as on each system, with the standard library of a later Python, and lists what the
standard library does not have there. Types of other libraries are skipped, which takes a third of the time: `mypy`
alone checks them, and they are the same on every system.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
SYSTEMS = {"darwin": "3.13", "win32": "3.14"}
"""The systems besides Linux, and a version of Python for each, later than that of pyproject.toml."""

SETTINGS = """
[mypy]
exclude = (^|/)stagescope/(record|demo)/
check_untyped_defs = True
[mypy-stagescope.record.*,stagescope.demo.*]
follow_imports = silent
[mypy-{libraries}]
follow_imports = skip
ignore_missing_imports = True
"""
LIBRARIES = (
    "anywidget click msgspec numpy paddle polars resvg_py rich scipy starlette threadpoolctl torch typst uvicorn "
    "zstandard"
)


def main(paths: list[str]) -> int:
    """Print what each system lacks; return 1 if that is anything."""
    with ThreadPoolExecutor() as pool:
        found = [*pool.map(lambda system: lacking(system, paths or ["src"]), SYSTEMS)]
    lines = [line for of_system in found for line in of_system]
    sys.stdout.write(("\n".join(lines) or f"Nothing is missing on {' and '.join(SYSTEMS)}.") + "\n")
    return 1 if lines else 0


def lacking(system: str, paths: list[str]) -> list[str]:
    """Return a line for each use of something that the standard library does not have on a system."""
    libraries = ",".join(f"{name}.*" for name in LIBRARIES.split())
    with tempfile.NamedTemporaryFile("w", suffix=".ini", encoding="utf-8") as settings:
        settings.write(SETTINGS.format(libraries=libraries))
        settings.flush()
        words = [sys.executable, "-m", "mypy", "--config-file", settings.name, "--platform", system]
        words += ["--python-version", SYSTEMS[system], "--cache-dir", f".mypy_cache/{system}"]
        words += ["--no-error-summary", *paths]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return [f"{system}: {line}" for line in done.stdout.splitlines() if "Module has no attribute" in line]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
