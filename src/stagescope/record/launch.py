"""Run a command with recording on, and be as good as absent: its output, exit code and signals are its own."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stagescope.record.format import SUFFIX
from stagescope.record.session import MAX_BYTES_VARIABLE, OUT_VARIABLE, RUN_VARIABLE, STEPS_VARIABLE
from stagescope.vocabulary.errors import CommandError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

HOOK_DIRECTORY = Path(__file__).absolute().parent / "hook"
SENT_BY_TERMINAL = 0x80
"""si_code of a signal that the kernel itself sent, such as Ctrl-C: the whole foreground group has it already."""

_PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)


class Ended(NamedTuple):
    """How a command ended: by its exit code, or by a signal and then `exit_code` is 128 and the signal."""

    exit_code: int
    signal_number: int | None


def prepare_directory(directory: Path, *, force: bool = False, join: bool = False) -> None:
    """Make `directory` ready to take the recordings of one run.

    A directory with something in it is refused, unless `force`, which removes the recordings in it (and nothing
    else), or `join`, which adds to what other nodes of the same run write there. Raises OutputError.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not join and any(directory.iterdir()):
            if not force:
                raise OutputError.exists(directory)
            for recording in recordings_in(directory):
                recording.unlink()
        probe = directory / f".stagescope-{uuid.uuid4().hex}"
        probe.touch()
        probe.unlink()
    except OSError as reason:
        raise OutputError.cannot_write(directory, reason) from None


def recording_environment(
    directory: Path,
    *,
    steps: str | None,
    run: str,
    inherited: Mapping[str, str],
    max_bytes: int | None = None,
) -> dict[str, str]:
    """Return the environment that has every Python process of a command record itself into `directory`."""
    path = [str(HOOK_DIRECTORY), *filter(None, [inherited.get("PYTHONPATH")])]
    environment = {
        **inherited,
        "PYTHONPATH": os.pathsep.join(path),
        OUT_VARIABLE: str(directory.resolve()),
        RUN_VARIABLE: run,
    }
    own = {STEPS_VARIABLE: steps, MAX_BYTES_VARIABLE: None if max_bytes is None else str(max_bytes)}
    for variable, value in own.items():
        environment.pop(variable, None)
        if value:
            environment[variable] = value
    return environment


def recordings_in(directory: Path) -> set[Path]:
    """Return the recordings in a directory and in those of machines in it."""
    return {*directory.glob(f"*{SUFFIX}"), *directory.glob(f"*/*{SUFFIX}")}


def count_processes(recordings: Iterable[Path]) -> int:
    """Return how many processes have written these: the segments of one are told apart by what follows a dot."""
    return len({(path.parent, path.name.partition(".")[0]) for path in recordings})


def run_command(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None = None
) -> Ended:
    """Run `command` to its end and return how it ended; output goes where ours goes, or to `output`.

    Signals sent to this process alone are passed on; what the terminal sends reaches the command anyway. Raises
    CommandError when it cannot be started.
    """
    watched = _PASSED_ON | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    at_child_end = _heed_children()

    def as_if_started_alone() -> None:
        signal.signal(signal.SIGCHLD, at_child_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            preexec_fn=as_if_started_alone,  # noqa: PLW1509  # no threads here
        )
        return _ended(_follow(process, watched))
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError.not_found(command[0]) from None
    except OSError as reason:
        raise CommandError.cannot_start(command[0], reason) from None
    finally:
        _forget_pending(watched)
        if at_child_end is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_alike(ended: Ended) -> None:
    """End this process by the signal that ended the command, so that a shell sees the same; else return."""
    if ended.signal_number is None:
        return
    _leave_no_core()
    if ended.signal_number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(ended.signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), ended.signal_number)


def _heed_children() -> signal.Handlers:
    """Return whether ends of children were ignored; undo that, or the system would tell us nothing of them."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return signal.SIG_DFL
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return signal.SIG_IGN


def _follow(process: subprocess.Popen[bytes], watched: frozenset[signal.Signals]) -> int:
    """Wait for the end of `process`, passing signals on; return its code as subprocess spells it."""
    while (code := process.poll()) is None:
        arrived = signal.sigwaitinfo(watched)
        if arrived.si_signo != signal.SIGCHLD and arrived.si_code != SENT_BY_TERMINAL:
            process.send_signal(arrived.si_signo)
    return code


def _ended(code: int) -> Ended:
    return Ended(code, None) if code >= 0 else Ended(128 - code, -code)


def _forget_pending(watched: frozenset[signal.Signals]) -> None:
    """Take signals that came at the very end off the queue: they were meant for the command."""
    while signal.sigtimedwait(watched, 0):
        continue


def _leave_no_core() -> None:
    """Write no core file of this process: the command has left its own."""
    import resource  # not on every platform, and seldom needed

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
