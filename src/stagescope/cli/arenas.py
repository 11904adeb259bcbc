"""The heaps of glibc, each of which keeps memory that its threads have freed."""

from __future__ import annotations

import ctypes
import sys

M_ARENA_MAX = -8
"""From malloc.h."""

ARENAS = 2


def share_arenas() -> None:
    """Let all threads of this process share two heaps instead of eight per processor; only glibc has them.

    A server that answers each request in a thread of its own had 594 MB instead of 469 MB without it.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)
    except (OSError, AttributeError):
        return
