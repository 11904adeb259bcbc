"""End a command that runs until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


class ending:  # noqa: N801 - a context manager
    """Set an event on Ctrl-C and on SIGTERM while the block runs, in the main thread.

    A library that is loaded in the block, such as Polars, may put its own handler in front, after which the system goes
    on with a wait instead of ending it. A command that loads some therefore enters it again to wait.
    """

    def __init__(self, ended: threading.Event) -> None:
        self._ended = ended
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> None:
        """Install the handlers."""
        signals = (signal.SIGINT, signal.SIGTERM) if self._is_main else ()
        self._before = {number: signal.signal(number, self._end) for number in signals}

    def __exit__(self, *_: object) -> None:
        """Restore the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _end(self, _: int, __: FrameType | None) -> None:
        self._ended.set()
