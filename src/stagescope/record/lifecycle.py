"""Stores the recording when the process exits, forks or receives SIGTERM, without changing what happens then.

SIGTERM is the difficult case. A Python signal handler only runs between bytecodes of the main thread, which may be
blocked in a collective that never returns. The C-level handler therefore also writes to the writer's pipe
(`signal.set_wakeup_fd`). The writer stores everything, gives the main thread `MAIN_THREAD_GRACE_S` to handle the
signal, and otherwise ends the process itself with the signal's default action.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from typing import TYPE_CHECKING

from stagescope.record.exit_status import ExitStatus, status_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from stagescope.record.recorder import Recorder
    from stagescope.record.writer import Writer

SIGNAL_FLUSH_TIMEOUT_S = 2.0
MAIN_THREAD_GRACE_S = 1.0
MAX_EXCEPTION_CHARACTERS = 200
_SIGTERM = {signal.SIGTERM}
_kept_open: list[Writer] = []
"""Writers that were stopped outside the main thread. Only the main thread may call `set_wakeup_fd`, so the C-level
handler still writes to their pipes, which must stay open.
"""


class Lifecycle:
    """Stores the recording at every end of the process that leaves time for it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._previous: object = None
        self._watched_by: Writer | None = None
        self._handled = threading.Event()
        self._attached_pid = 0
        self._detached = False
        self._exit_status = ExitStatus()
        self._exits: tuple[object, object] | None = None
        self._masks = threading.local()
        _register_at_fork(weakref.ref(self))

    def attach(self, writer: Writer) -> None:
        """Watch for the end of this process. Called whenever a thread records its first span."""
        if self._detached:
            return
        if self._attached_pid != os.getpid():
            self._attached_pid = os.getpid()
            _at_process_end(self._at_exit)
            self._watch_exits()
        if self._watched_by is None and _is_main_thread():
            self._watch_sigterm(writer)

    def detach(self) -> None:
        """Stop watching; restore the previous SIGTERM handler if ours is still installed."""
        self._detached = True
        atexit.unregister(self._at_exit)
        self._ignore_exits()
        if (
            self._watched_by is not None and not _is_main_thread()
        ):  # Python allows signal handlers to be changed in the main thread only
            _kept_open.append(self._watched_by)
            return
        self._give_sigterm_back()

    def _watch_exits(self) -> None:
        if self._exits is None:  # a forked child has inherited the wrapper
            from stagescope.record.wrappers import exit_wrapper  # not needed before the first span

            self._exits = sys.exit, exit_wrapper(sys.exit, self._note_exit)
            sys.exit = self._exits[1]

    def _note_exit(self, error: SystemExit) -> None:
        self._exit_status.note(error)

    def _ignore_exits(self) -> None:
        if self._exits is not None and sys.exit is self._exits[1]:
            sys.exit = self._exits[0]  # type: ignore[assignment]

    def on_signal_byte(self, number: int) -> None:
        """Handle a signal that the C-level handler reported. Runs in the writer thread, after everything is stored."""
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
        if listener != -1:  # an event loop already uses it and keeps precedence
            _set_wakeup_descriptor(listener)

    def _give_sigterm_back(self) -> None:
        """Undo `_watch_sigterm`, except for handlers that other code has replaced since."""
        writer, self._watched_by = self._watched_by, None
        if writer is None:
            return
        if signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._previous)  # type: ignore[arg-type]  # the value came from getsignal
        listener = signal.set_wakeup_fd(-1)
        if listener != writer.wake_descriptor:
            _set_wakeup_descriptor(listener)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Store the recording, then do what would have happened without the recorder.

        A handler that the training installed later may call this one as "the previous handler". Without the recorder
        there would have been none, so in that case the training decides whether the process ends.
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
            name = exception_name()
            reason = "exit" if name is None else "exception"
            self._recorder.stop(reason, exception=name, exit_status=None if name else self._status())

    def _status(self) -> int | None:
        error = sys.exc_info()[1]  # in a child of multiprocessing, while it is raised
        return status_of(error) if isinstance(error, SystemExit) else self._exit_status.value

    def before_fork(self) -> None:
        """Block SIGTERM during the fork: the child would write a signal into the parent's pipe, and end the parent."""
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGTERM)

    def after_fork(self) -> None:
        """Unblock SIGTERM in the forking thread."""
        if signal.SIGTERM not in self._masks.before:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGTERM)

    def begin_in_child(self) -> None:
        """Start with empty state in a forked child, which must not touch the parent's pipe or file."""
        if not self._detached:
            self._give_sigterm_back()
            self._handled = threading.Event()
            self._exit_status = ExitStatus()
            self._recorder.restart_in_child()
        self.after_fork()


def _register_at_fork(of_lifecycle: weakref.ref[Lifecycle]) -> None:
    """Call a lifecycle at every fork while it exists.

    `os.register_at_fork` has no way to unregister a function, hence the weak reference.
    """

    def make(act: Callable[[Lifecycle], None]) -> Callable[[], None]:
        def at_fork() -> None:
            lifecycle = of_lifecycle()
            if lifecycle is not None:
                act(lifecycle)

        return at_fork

    os.register_at_fork(
        before=make(Lifecycle.before_fork),
        after_in_parent=make(Lifecycle.after_fork),
        after_in_child=make(Lifecycle.begin_in_child),
    )


def exception_name() -> str | None:
    """Return the type of the exception that ends this process, None without one; called at exit.

    Python keeps the last exception that it has printed, so no hook is needed: one would be seen by the training. A
    child of multiprocessing runs its finalizers while the exception is raised. One that caught it and exits with a
    code, as those of torch.multiprocessing do, is known from the context of this exit.
    """
    try:
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            error = error.__context__ if error.code not in (None, 0) else None
        elif error is None and not hasattr(
            sys, "ps1"
        ):  # in an interactive session, it is that of any command
            error = getattr(sys, "last_value", None)
        if error is None:
            return None
        kind = type(error)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
    except Exception:  # noqa: BLE001  # the training's own classes, and code objects of its own
        return None
    return name[:MAX_EXCEPTION_CHARACTERS]


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _set_wakeup_descriptor(descriptor: int) -> None:
    """Let the C-level handler write to `descriptor` again, unless it has been closed meanwhile."""
    try:
        signal.set_wakeup_fd(descriptor)
    except (OSError, ValueError):
        return


def _at_process_end(function: Callable[[], None]) -> None:
    """Call `function` at exit. A multiprocessing child does not run atexit functions, only its finalizers."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing.util import Finalize  # already loaded in such a child

        Finalize(None, function, exitpriority=10)
    else:
        atexit.register(function)


def _die_by(number: int) -> None:
    """End this process by the default action of signal `number`, from a thread other than the main one."""
    try:
        import ctypes  # its import costs 10 ms, and it is rarely needed
    except (
        ImportError
    ):  # a Python built without ctypes: a process that ends by SIGKILL is better than one that hangs
        number = signal.SIGKILL
    else:
        ctypes.CDLL(None).signal(number, 0)
    os.kill(os.getpid(), number)
