"""Memory of this process that is free and not returned to the operating system."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def return_memory() -> None:
    """Return to the operating system what the C library of Linux keeps free for this process; takes milliseconds.

    Between two phases that take much memory: NumPy allocates arrays up to 32 MB where they leave gaps, which stay.
    Other C libraries return memory on their own.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # as in musl
            ctypes.CDLL(None).malloc_trim(0)
