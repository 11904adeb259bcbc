"""Keep Ctrl-C until the command has ended.

A KeyboardInterrupt is lost if it is raised inside a destructor or callback, which Python cannot leave with an
exception, or under an `except` of a library that is wider than meant. Others become another exception: numpy, for one,
raises ImportError if it is interrupted while it is loaded. Polars panics if it is interrupted while it is loaded, and
with RUST_BACKTRACE=1, looking up the names of its functions took 20 to 60 s: the interrupt waits until it is loaded.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from types import FrameType

    from typing_extensions import Self

AGAIN_S = 0.1
"""After a lost interrupt, until the next one: by then, what lost it has been left as a rule."""


class Interrupt(KeyboardInterrupt):
    """Ctrl-C; unlike a KeyboardInterrupt, it can have weak references."""


class interrupts_kept:  # noqa: N801 - a context manager
    """Interrupt the main thread on Ctrl-C while the block runs, again if that was lost, and note that it happened.

    Nothing changes if Ctrl-C is ignored, as for what a script starts in the background, or handled by the caller.
    """

    def __init__(self) -> None:
        """Note nothing yet."""
        self.is_interrupted = False
        self._is_within = False

    def __enter__(self) -> Self:
        """Install the handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            self._is_within = True
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handler."""
        if self._is_within:
            self._is_within = False
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, _: int, __: FrameType | None) -> None:
        self.is_interrupted = True
        if _is_loading("polars"):
            self._interrupt_soon()
            return
        raise self._new()  # in no variable of this frame, which the error refers to: it would outlive its handling

    def _new(self) -> Interrupt:
        error = Interrupt()
        self._raised = ref(error, self._note_end)
        return error

    def _note_end(self, _: object) -> None:
        """Interrupt again soon, if the error ended before the block did: the thread may still be where it was lost."""
        if self._is_within:
            self._interrupt_soon()

    def _interrupt_soon(self) -> None:
        timer = threading.Timer(AGAIN_S, self._again)
        timer.daemon = True
        timer.start()

    def _again(self) -> None:
        if not self._is_within:
            return
        if sys.platform == "win32":
            _thread.interrupt_main()
        else:  # ends the system calls of the thread, too
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _is_loading(name: str) -> bool:
    """Return whether a module is being loaded, by the mark that the import system sets for other threads."""
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False) is True
