"""Who may read the files that stagescope writes: their owner alone, unless the environment names others.

Recordings and exports contain names of machines, scripts and models, and shared file systems are readable by many
users. A umask that is stricter applies as well.
"""

from __future__ import annotations

import os

MODE_VARIABLE = "STAGESCOPE_FILE_MODE"
"""Environment variable with the permission bits of new files in octal, such as 640 for readers of the same group."""

OWNER_ONLY = 0o600
MODES = frozenset(f"6{group}{others}" for group in "0246" for others in "0246")
MALFORMED = f"{MODE_VARIABLE} must be an octal mode such as 600, 640, 660 or 644"


def file_mode() -> int:
    """Return the permission bits of new files: those of the owner alone if the variable is unset or malformed."""
    return OWNER_ONLY if is_malformed() else int(os.environ.get(MODE_VARIABLE) or "600", 8)


def directory_mode() -> int:
    """Return the permission bits of new directories: who may read the files in it may enter it."""
    mode = file_mode()
    return mode | (mode & 0o444) >> 2


def is_malformed() -> bool:
    """Return whether the variable is no mode, for those who can report it: recording uses OWNER_ONLY then."""
    text = os.environ.get(MODE_VARIABLE, "")
    return bool(text) and text.removeprefix("0") not in MODES
