"""The status with which a process exits, as far as it can be known before it has exited.

Python forgets a SystemExit before it calls what is registered for the exit, and no hook sees it. So ``sys.exit`` marks
the exception that it raises. Where that exception is freed decides: below a frame of Python, someone has caught it and
the process goes on; without any frame, it has left the main thread and ends the process. A SystemExit that the training
raises itself has no mark, and its status is unknown.
"""

from __future__ import annotations

import sys
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

MARK = "__stagescope_exit__"
STATUS_BITS = 0xFF
"""What the operating system keeps of a status."""


class ExitMark:
    """What an exception of ``sys.exit`` holds, to notice when it is freed."""


class ExitStatus:
    """The status of the exit that is in progress: `value` is None as long as none is known."""

    def __init__(self) -> None:
        self.value: int | None = None
        self._marks: dict[weakref.ref[ExitMark], int] = {}

    def note(self, error: SystemExit) -> None:
        """Note the exception of a call of ``sys.exit``."""
        if threading.current_thread() is not threading.main_thread():
            return
        mark = ExitMark()
        setattr(error, MARK, mark)
        self._marks[weakref.ref(mark, self._freed)] = status_of(error)

    def _freed(self, mark: weakref.ref[ExitMark]) -> None:
        status = self._marks.pop(mark, None)
        caller: FrameType | None = sys._getframe().f_back  # noqa: SLF001  # of the frame in which it was freed
        if caller is None and self.value is None:  # the context of an exception is freed after it
            self.value = status


def status_of(error: SystemExit) -> int:
    """Return the status with which a process exits that this exception ends."""
    code = error.code
    if code is None:
        return 0
    return code & STATUS_BITS if isinstance(code, int) else 1
