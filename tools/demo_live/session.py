"""A recorded terminal session: commands in the foreground and in the background, and what they printed."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

END_S = 20.0
COMMAND = [sys.executable, "-m", "stagescope"]


class DemoError(Exception):
    """Something that the demo waits for has not happened."""


class Background:
    """A command that runs beside the session, and its lines so far."""

    def __init__(self, session: Session, words: Sequence[str], *, is_shown: bool) -> None:
        """Start the command; its lines are part of the session if they are shown."""
        self.lines: list[str] = []
        self._session, self._is_shown, self._name = session, is_shown, words[len(COMMAND)]
        # A session of its own: Ctrl-C ends the demo, which then ends its commands in order.
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line.rstrip("\n"))
            if self._is_shown and line.strip():
                self._session.note(f"[{self._name}] {line.rstrip()}")

    def find(self, pattern: str) -> str | None:
        """Return the first line that a pattern matches, None without one."""
        return next((line for line in list(self.lines) if re.search(pattern, line)), None)

    def end(self) -> None:
        """End the command if it still runs, as Ctrl-C would."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                break
            self.process.send_signal(number)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                continue
        self._thread.join(END_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


class Session:
    """What was typed and printed, on the terminal and in a file; `close` ends what still runs, the last one first."""

    def __init__(self, path: Path) -> None:
        """Begin to write to a file."""
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._running: list[Background] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self._began_s

    def note(self, line: str) -> None:
        """Add a line; paths are relative to the working directory."""
        line = line.replace(f"{Path.cwd()}/", "")
        with self._lock:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
            if not self._file.closed:
                self._file.write(f"{line}\n")
                self._file.flush()

    def step(self, text: str) -> None:
        """Add what happens next, as a comment with the time."""
        self.note("")
        self.note(f"# {self.elapsed_s:3.0f} s: {text}")

    def start(self, *words: str, is_shown: bool = True, program: Sequence[str] = COMMAND) -> Background:
        """Start a command in the background."""
        self.note(f"$ {shown_command(program, words)} &")
        found = Background(self, [*program, *words], is_shown=is_shown)
        self._running.append(found)
        return found

    def run(self, *words: str) -> tuple[int, str]:
        """Run a command, and return its exit code and what it printed."""
        self.note(f"$ {shown_command(COMMAND, words)}")
        done = subprocess.run(
            [*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        for line in done.stdout.rstrip("\n").split("\n"):
            self.note(line)
        return done.returncode, done.stdout

    def set(self, control: Path, words: str) -> None:
        """Write the control file of the training."""
        self.note(f"$ echo {words} > {control}" if words else f"$ : > {control}")
        control.write_text(words, encoding="utf-8")

    def wait(self, what: str, condition: Callable[[], object], seconds: float) -> None:
        """Wait until a condition holds. Raises DemoError if it does not for too long."""
        until_s = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until_s:
                raise DemoError(f"{what} has not happened within {seconds:.0f} s")
            for each in self._running:
                if each.process.poll() not in (None, 0, 3):
                    raise DemoError(f"a command has failed: {each.process.args}: {each.lines[-3:]}")
            time.sleep(0.2)

    def close(self) -> None:
        """End all commands."""
        for each in reversed(self._running):
            each.end()
        self._file.close()


def shown_command(program: Sequence[str], words: Sequence[str]) -> str:
    """Return a command as a user would type it."""
    own = ["stagescope"] if list(program) == COMMAND else [Path(program[0]).name, *program[1:]]
    return shlex.join([*own, *words]).replace(f"{sys.executable} -m torch.distributed.run", "torchrun")
