"""The name and the path of a run, for the title of its page: a browser has many tabs with the same facts."""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


COLLAPSED = re.compile(r"^([a-z0-9]{2,}):/(?!/)")
"""What commonpath makes of addresses of object stores."""


def document_title(facts: str, sources: Iterable[str | None]) -> str:
    """Return a title that begins with the name of the input and ends with its path; without inputs, the facts.

    >>> document_title("1f1b · 2 ranks", ["runs/seven/rank0.pftrace", "runs/seven/rank1.pftrace"])
    'seven · 1f1b · 2 ranks · runs/seven'
    >>> document_title("1f1b · 2 ranks", ["run.pftrace", "run.pftrace"])
    'run.pftrace · 1f1b · 2 ranks'
    """
    files = sorted({source for source in sources if source})
    if not files:
        return facts
    path = _common_path(files)
    name = PurePath(path).name
    if not name:
        return f"{PurePath(files[0]).name} and {len(files) - 1} more · {facts}"
    return f"{name} · {facts}" + (f" · {path}" if path != name else "")


def _common_path(files: list[str]) -> str:
    """Return the file, or the innermost folder of all files; empty if there is none."""
    try:
        return COLLAPSED.sub(r"\1://", os.path.commonpath(files))
    except ValueError:  # absolute and relative paths
        return ""
