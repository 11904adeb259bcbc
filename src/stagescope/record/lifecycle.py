"""The ends of a process: exit, fork, SIGTERM. Each is passed on exactly as if nobody had watched.

SIGTERM is the hard one. A Python handler only runs between bytecodes of the main thread, and that thread may sit
in a collective that never returns. So the C-level handler also writes to the writer's pipe
(`signal.set_wakeup_fd`); the writer stores what there is, gives the main thread a moment to act, and else ends
the process itself the way the default action would have.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    from stagescope.record.recorder import Recorder
    from stagescope.record.writer import Writer

SIGNAL_FLUSH_TIMEOUT_S = 2.0
MAIN_THREAD_GRACE_S = 1.0


class Lifecycle:
    """Stores the recording at every end of the process that leaves a moment for it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._previous: object = None
        self._handled = threading.Event()
        self._attached_pid = 0
        self._detached = False
        os.register_at_fork(after_in_child=self._in_child)

    def attach(self, writer: Writer) -> None:
        """Watch the ends of this process; called once per process, when it records its first span."""
        if self._attached_pid == os.getpid() or self._detached:
            return
        self._attached_pid = os.getpid()
        _at_process_end(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            self._watch_sigterm(writer)

    def detach(self) -> None:
        """Stop watching: give SIGTERM back if it is still ours."""
        self._detached = True
        atexit.unregister(self._at_exit)
        if threading.current_thread() is not threading.main_thread() or self._attached_pid != os.getpid():
            return
        if self._previous is not None and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]  # what getsignal gave us
            signal.set_wakeup_fd(-1)
        self._previous = None

    def on_signal_byte(self, number: int) -> None:
        """Act on a signal seen by the C-level handler; runs in the writer thread, everything is stored."""
        if number != signal.SIGTERM or signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            return
        if not self._handled.wait(MAIN_THREAD_GRACE_S) and self._previous is signal.SIG_DFL:
            _die_by(number)

    def _watch_sigterm(self, writer: Writer) -> None:
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN or previous == self._on_sigterm:
            return
        self._previous = previous
        signal.signal(signal.SIGTERM, self._on_sigterm)
        listener = signal.set_wakeup_fd(writer.wake_descriptor, warn_on_full_buffer=False)
        if listener != -1:  # an event loop listens already, and it comes first
            signal.set_wakeup_fd(listener)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._handled.set()
        self._recorder.flush(SIGNAL_FLUSH_TIMEOUT_S)
        if callable(self._previous):
            self._previous(number, frame)
            self._handled.clear()
            return
        self._recorder.stop("sigterm")
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    def _at_exit(self) -> None:
        if self._attached_pid == os.getpid():
            self._recorder.stop("exit")

    def _in_child(self) -> None:
        """Begin anew in a forked child, which must not touch the parent's pipe or file."""
        if self._detached:
            return
        if self._previous is not None and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]  # as above
            signal.set_wakeup_fd(-1)
        self._previous = None
        self._handled = threading.Event()
        self._recorder.restart_in_child()


def _at_process_end(function: object) -> None:
    """Have `function` called at exit; a multiprocessing child skips atexit and runs its finalizers instead."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # noqa: PLC0415  # only in a child, where it is loaded

        Finalize(None, function, exitpriority=10)  # type: ignore[arg-type]  # a bound method
    else:
        atexit.register(function)  # type: ignore[arg-type]  # same


def _die_by(number: int) -> None:
    """End this process by a signal's default action from a thread that is not the main one."""
    import ctypes  # noqa: PLC0415  # costs 10 ms and is needed once in the life of a process

    ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
