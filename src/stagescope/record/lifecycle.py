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
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from stagescope.record.recorder import Recorder
    from stagescope.record.writer import Writer

SIGNAL_FLUSH_TIMEOUT_S = 2.0
MAIN_THREAD_GRACE_S = 1.0
_SIGTERM = {signal.SIGTERM}
_kept_open: list[Writer] = []
"""Writers whose pipe the C-level handler still writes to, because they were stopped outside the main thread."""


class Lifecycle:
    """Stores the recording at every end of the process that leaves a moment for it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._previous: object = None
        self._watched_by: Writer | None = None
        self._handled = threading.Event()
        self._attached_pid = 0
        self._detached = False
        self._masks = threading.local()
        _register_at_fork(weakref.ref(self))

    def attach(self, writer: Writer) -> None:
        """Watch the ends of this process; called whenever a thread records its first span."""
        if self._detached:
            return
        if self._attached_pid != os.getpid():
            self._attached_pid = os.getpid()
            _at_process_end(self._at_exit)
        if self._watched_by is None and _is_main_thread():
            self._watch_sigterm(writer)

    def detach(self) -> None:
        """Stop watching: give SIGTERM back if it is still ours."""
        self._detached = True
        atexit.unregister(self._at_exit)
        if self._watched_by is not None and not _is_main_thread():  # Python leaves signals to the main thread
            _kept_open.append(self._watched_by)
            return
        self._give_sigterm_back()

    def on_signal_byte(self, number: int) -> None:
        """Act on a signal seen by the C-level handler; runs in the writer thread, everything is stored."""
        if number != signal.SIGTERM or signal.getsignal(signal.SIGTERM) != self._on_sigterm:
            return
        if not self._handled.wait(MAIN_THREAD_GRACE_S) and self._previous is signal.SIG_DFL:
            self._recorder.rescue()
            _die_by(number)

    def _watch_sigterm(self, writer: Writer) -> None:
        previous = signal.getsignal(signal.SIGTERM)
        if previous is None or previous is signal.SIG_IGN or previous == self._on_sigterm:
            return
        self._previous = previous
        self._watched_by = writer
        signal.signal(signal.SIGTERM, self._on_sigterm)
        listener = signal.set_wakeup_fd(writer.wake_descriptor, warn_on_full_buffer=False)
        if listener != -1:  # an event loop listens already, and it comes first
            _set_wakeup_descriptor(listener)

    def _give_sigterm_back(self) -> None:
        """Undo `_watch_sigterm`, but for what somebody else has replaced since."""
        writer, self._watched_by = self._watched_by, None
        if writer is None:
            return
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]  # what getsignal gave us
        listener = signal.set_wakeup_fd(-1)
        if listener != writer.wake_descriptor:
            _set_wakeup_descriptor(listener)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Store what there is, then do what would have been done without us.

        A handler that the training has installed since may call this one as "the previous handler". Without us
        that had been none, so then it is the training that decides whether the process ends.
        """
        self._handled.set()
        self._recorder.flush(SIGNAL_FLUSH_TIMEOUT_S)
        if callable(self._previous):
            self._previous(number, frame)
            self._handled.clear()
        elif signal.getsignal(number) == self._on_sigterm:
            self._recorder.stop("sigterm")
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _at_exit(self) -> None:
        if self._attached_pid == os.getpid():
            self._recorder.stop("exit")

    def before_fork(self) -> None:
        """Hold SIGTERM back: one sent to the newborn child would write into the parent's pipe, and end it."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGTERM)

    def after_fork(self) -> None:
        """Let SIGTERM through again, in the thread that has forked."""
        if signal.SIGTERM not in self._masks.before:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGTERM)

    def begin_in_child(self) -> None:
        """Begin anew in a forked child, which must not touch the parent's pipe or file."""
        if not self._detached:
            self._give_sigterm_back()
            self._handled = threading.Event()
            self._recorder.restart_in_child()
        self.after_fork()


def _register_at_fork(of_lifecycle: weakref.ref[Lifecycle]) -> None:
    """Tell a lifecycle of every fork, for as long as there is one: Python itself never forgets a function."""

    def tell(act: Callable[[Lifecycle], None]) -> Callable[[], None]:
        def at_fork() -> None:
            lifecycle = of_lifecycle()
            if lifecycle is not None:
                act(lifecycle)

        return at_fork

    os.register_at_fork(
        before=tell(Lifecycle.before_fork),
        after_in_parent=tell(Lifecycle.after_fork),
        after_in_child=tell(Lifecycle.begin_in_child),
    )


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _set_wakeup_descriptor(descriptor: int) -> None:
    """Have the C-level handler write to `descriptor` again, unless that is closed by now."""
    try:
        signal.set_wakeup_fd(descriptor)
    except (OSError, ValueError):
        return


def _at_process_end(function: Callable[[], None]) -> None:
    """Have `function` called at exit; a multiprocessing child skips atexit and runs its finalizers instead."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # only in a child, where it is loaded

        Finalize(None, function, exitpriority=10)
    else:
        atexit.register(function)


def _die_by(number: int) -> None:
    """End this process by a signal's default action from a thread that is not the main one."""
    try:
        import ctypes  # costs 10 ms and is needed once in the life of a process
    except ImportError:  # a Python built without it; better another signal than a process that does not end
        number = signal.SIGKILL
    else:
        ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
