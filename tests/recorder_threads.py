"""The threads of the recorder in this process, whatever other threads a test session has."""

from __future__ import annotations

import threading
import time

LIMIT_S = 30
"""A recorder that stops waits for its writer for some seconds only, which a busy disk may exceed."""


def recorder_threads() -> list[str]:
    """Return the names of the recorder's running threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stagescope-")]


def remaining_threads() -> list[str]:
    """Return the names of the recorder's threads that still run after `LIMIT_S`."""
    give_up_s = time.monotonic() + LIMIT_S
    while recorder_threads() and time.monotonic() < give_up_s:
        time.sleep(0.01)
    return recorder_threads()
