"""Folders that outlive one test, such as a training that several tests look at, and go with the process."""

from __future__ import annotations

import atexit
import os
import shutil
from pathlib import Path
from tempfile import mkdtemp


def scratch_directory(name: str) -> Path:
    """Return a new folder, which is removed when this process ends (not when one forked from it does)."""
    path = Path(mkdtemp(prefix=f"stagescope-{name}-"))
    atexit.register(_remove, path, os.getpid())
    return path


def _remove(path: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(path, ignore_errors=True)
