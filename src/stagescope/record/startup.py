"""Run by the start-up hook in the Python processes of a recorded command that import a framework, or stagescope.

A process that imports neither (a launcher, a data loader) only has an additional entry in `sys.meta_path`, and one that
does not train writes no file.
"""

from __future__ import annotations

import os
import sys

from stagescope.record.startup_file import NAME


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


def start_where_prepared() -> None:
    """Start recording if the start-up hook waits for that: a script may mark spans without any framework."""
    for finder in sys.meta_path.copy():
        if type(finder).__module__ in ("sitecustomize", NAME) and hasattr(finder, "arm"):
            finder.arm()
