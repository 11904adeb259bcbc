"""The output of the commands for tests/data/recordings/v1, which is in the golden files of tests/data/golden/v1."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

from places import DATA
from stagescope.cli import main

RECORDING = DATA / "recordings" / "v1"
GOLDEN = DATA / "golden" / "v1"

CALLS: dict[str, tuple[str, ...]] = {
    "show.txt": ("show", str(RECORDING), "--no-color", "--width", "100"),
    "show_ascii.txt": ("show", str(RECORDING), "--ascii", "--no-color", "--width", "80"),
    "report.txt": ("report", str(RECORDING)),
    "report.json": ("report", str(RECORDING), "--json", "-"),
}
"""Golden file, and the call whose standard output it holds."""

EXPORTS = ("spans.csv", "step.svg", "trace.json")
"""Golden files that an export writes; the suffix chooses the format."""


def output_of(name: str) -> str:
    """Return what a golden file should hold today."""
    if name in CALLS:
        printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        with contextlib.redirect_stdout(printed):
            assert main(CALLS[name]) == 0
        printed.seek(0)
        return printed.read()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / name
        assert main(["export", str(RECORDING), "-o", str(path)]) == 0
        return path.read_text(encoding="utf-8")


NAMES = (*CALLS, *EXPORTS)
