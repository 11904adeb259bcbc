"""What the start-up hook does in every Python process of a recorded command.

Cheap on purpose: a process that never imports a framework (a launcher, a data loader) pays for one entry in
`sys.meta_path` and writes nothing.
"""

from __future__ import annotations

import os
import sys


def arm() -> None:
    """Wait for the first framework import of this process and record it. Never raises."""
    try:
        from stagescope.record import session  # inside, so that a broken install is caught

        steps = os.environ.get(session.STEPS_VARIABLE)
        session.start(steps=steps or None)
    except Exception as error:  # noqa: BLE001  # whatever is wrong here, the training must start
        sys.stderr.write(f"stagescope: cannot record this process: {error!r}\n")
