"""Runs a command with recording on, without changing its output, exit code or signal handling."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.record.contents import HEADER_BYTES, size_of
from stagescope.record.format import HEADER, Frame, scan_frames
from stagescope.record.run_identity import LAUNCH_VARIABLE, RUN_VARIABLE
from stagescope.record.session import KEEP_VARIABLE, MAX_BYTES_VARIABLE, OUT_VARIABLE, STEPS_VARIABLE
from stagescope.vocabulary.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import IO

HOOK_DIRECTORY = Path(__file__).absolute().parent / "hook"
SENT_BY_TERMINAL = 0x80
"""si_code of a signal sent by the kernel, such as for Ctrl-C: the whole foreground process group has received it."""

LONGEST_WAIT_S = 0.5
"""After this time without a signal, the command is asked whether it has ended."""

MAX_READ_RECORDINGS = 64
"""Recordings that are opened at the end of a command; in a directory with more of them, all count as its own."""

MAX_HEADER_ONLY_BYTES = 64 << 10
"""Size up to which a recording is read for the reasons why a framework was not recorded."""

_PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)


class Ended(NamedTuple):
    """How a command ended: with an exit code, or by a signal; then `exit_code` is 128 plus the signal number."""

    exit_code: int
    signal_number: int | None


def recording_environment(
    directory: Path,
    *,
    steps: str | None,
    run: str,
    inherited: Mapping[str, str],
    max_bytes: int | str | None = None,
) -> dict[str, str]:
    """Return an environment in which every Python process records itself into `directory`."""
    path = [str(HOOK_DIRECTORY), *filter(None, [inherited.get("PYTHONPATH")])]
    environment = {
        **inherited,
        "PYTHONPATH": os.pathsep.join(path),
        OUT_VARIABLE: str(directory.resolve()),
        RUN_VARIABLE: run,
    }
    bound = None if max_bytes is None else str(max_bytes)
    own = {STEPS_VARIABLE: steps, KEEP_VARIABLE: None, MAX_BYTES_VARIABLE: bound, LAUNCH_VARIABLE: None}
    for variable, value in own.items():
        environment.pop(variable, None)
        if value:
            environment[variable] = value
    return environment


def activation(directory: Path, settings: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables alone with which every Python process records itself into `directory`.

    `settings` are more of stagescope's variables; empty ones are left out. Without the identifier of a run, processes
    belong together that one launcher states to belong together.
    """
    own = {"PYTHONPATH": str(HOOK_DIRECTORY), OUT_VARIABLE: str(directory.resolve())}
    return own | {variable: value for variable, value in settings.items() if value}


def count_processes(recordings: Iterable[Path]) -> int:
    """Return how many processes wrote these files. The segments of a process differ in the part after the first dot."""
    return len({(path.parent, path.name.partition(".")[0]) for path in recordings})


def recordings_of(launch: str, recordings: set[Path]) -> set[Path]:
    """Return the recordings of the processes that one `stagescope run` started.

    With more than `MAX_READ_RECORDINGS`, returns all: a thousand commands in one directory must not read a million
    files.
    """
    if len(recordings) > MAX_READ_RECORDINGS:
        return recordings
    return {path for path in recordings if _launch_of(path) in (launch, None)}


def _launch_of(path: Path) -> object:
    """Return the launch in the first header of a recording, None if it cannot be read."""
    try:
        with path.open("rb") as file:
            frames = scan_frames(file.read(HEADER_BYTES))
    except OSError:
        return None
    first = next(frames, None)
    return _object(bytes(first.payload)).get("launch") if isinstance(first, Frame) else None


def refusals_in(recordings: Iterable[Path]) -> list[str]:
    """Return why frameworks were not recorded, each reason once: ``Megatron-core 0.20: `forward_step` not found``.

    Only small files are read: a process in which nothing could be recorded has written a header and no spans.
    """
    reasons: dict[str, None] = {}
    for path in sorted(recordings):
        if 0 < size_of(path) <= MAX_HEADER_ONLY_BYTES:
            reasons.update(dict.fromkeys(_refusals(path.read_bytes())))
    return list(reasons)


def _refusals(data: bytes) -> Iterator[str]:
    """Yield the reasons in one file; a header in another form, such as one of a later version, has none."""
    for frame in scan_frames(data):
        facts = _object(bytes(frame.payload)) if isinstance(frame, Frame) and frame.type == HEADER else {}
        frameworks = facts.get("frameworks")
        for name, known in frameworks.items() if isinstance(frameworks, dict) else ():
            if isinstance(known, dict) and known.get("recorded") is False:
                missing = known.get("missing")
                reasons = ", ".join(map(str, missing[:3])) if isinstance(missing, list) else "reason unknown"
                yield f"{name} {known.get('version') or '(unknown version)'}: {reasons}"


def _object(payload: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(payload)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


def run_command(
    command: Sequence[str], environment: Mapping[str, str], output: IO[bytes] | None = None
) -> Ended:
    """Run `command` to its end and return how it ended. Its output goes to `output`, or to our own.

    Signals that are sent to this process alone are forwarded; those from the terminal reach the command directly.
    Raises CommandError if the command cannot be started.
    """
    watched = _PASSED_ON | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    at_child_end = _watch_children()

    def as_if_started_alone() -> None:
        signal.signal(signal.SIGCHLD, at_child_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            preexec_fn=as_if_started_alone,  # noqa: PLW1509  # this process has no other threads
        )
        return _ended(_follow(process, watched))
    except (FileNotFoundError, NotADirectoryError):
        raise CommandError.not_found(command[0]) from None
    except OSError as reason:
        raise CommandError.cannot_start(command[0], reason) from None
    finally:
        _discard_pending(watched)
        if at_child_end is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_by_same_signal(ended: Ended) -> None:
    """End this process by the signal that ended the command, so a shell sees the same status; otherwise return."""
    if ended.signal_number is None:
        return
    _leave_no_core()
    if ended.signal_number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(ended.signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), ended.signal_number)


def _watch_children() -> signal.Handlers:
    """Reset an ignored SIGCHLD, which would hide the end of the child; return the previous handler."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        return signal.SIG_DFL
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return signal.SIG_IGN


def _follow(process: subprocess.Popen[bytes], watched: frozenset[signal.Signals]) -> int:
    """Wait for the end of `process` while forwarding signals; return its code as subprocess defines it."""
    while (code := process.poll()) is None:
        # Not for as long as it takes: a thread of a library, which does not block SIGCHLD, can consume it.
        arrived = signal.sigtimedwait(watched, LONGEST_WAIT_S)
        if arrived and arrived.si_signo != signal.SIGCHLD and arrived.si_code != SENT_BY_TERMINAL:
            process.send_signal(arrived.si_signo)
    return code


def _ended(code: int) -> Ended:
    return Ended(code, None) if code >= 0 else Ended(128 - code, -code)


def _discard_pending(watched: frozenset[signal.Signals]) -> None:
    """Discard signals that arrived at the very end: they were meant for the command."""
    while signal.sigtimedwait(watched, 0):
        continue


def _leave_no_core() -> None:
    """Prevent a core file of this process; the command has already written its own."""
    import resource  # not available on every platform, and rarely needed

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
