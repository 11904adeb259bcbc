# noqa: INP001 - a script, not a package
"""Regenerate the golden command outputs for the recording of format version 1; review the diff before committing."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from golden_outputs import GOLDEN, NAMES, output_of


def main() -> None:
    """Write every golden file and print which ones changed."""
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        path, wanted = GOLDEN / name, output_of(name)
        state = "unchanged" if path.exists() and path.read_text(encoding="utf-8") == wanted else "written"
        path.write_text(wanted, encoding="utf-8")
        sys.stdout.write(f"{name}: {state}\n")


if __name__ == "__main__":
    main()
