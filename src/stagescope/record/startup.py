"""Run by the start-up hook in every Python process of a recorded command.

It has to be cheap: a process that never imports a framework (a launcher, a data loader) only gets an additional entry
in `sys.meta_path` and writes no file.
"""

from __future__ import annotations

import os
import sys


def arm() -> None:
    """Start recording when this process first imports a framework. Never raises."""
    try:
        from stagescope.record import (
            session,
        )  # imported here, so that errors of a broken installation are caught

        steps = os.environ.get(session.STEPS_VARIABLE)
        session.start(steps=steps or None)
    except Exception as error:  # noqa: BLE001  # the training must start in any case
        sys.stderr.write(f"stagescope: cannot record this process: {error!r}\n")
