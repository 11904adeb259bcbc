"""The threads of the recorder in this process, whatever other threads a test session has."""

from __future__ import annotations

import threading


def recorder_threads() -> list[str]:
    """Return the names of the recorder's running threads."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stagescope-")]
