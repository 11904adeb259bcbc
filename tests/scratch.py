"""Directories that several tests share, such as a recorded training run; removed when the process exits."""

from __future__ import annotations

import atexit
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp


def scratch_directory(name: str) -> Path:
    """Return a new directory, removed when this process exits (but not when a forked child does)."""
    path = Path(mkdtemp(prefix=f"stagescope-{name}-"))
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
