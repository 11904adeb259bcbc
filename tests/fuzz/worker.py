"""A process that mutates and reads samples, with limits on time and memory, and the handle to it.

One process serves many mutations, because starting Python takes longer than reading a sample. It is replaced when it
hangs, exceeds the memory or dies.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from fuzz.formats import Format
    from fuzz.mutations import Mutator
    from fuzz.oracle import Intact, Outcome

HANG_SECONDS = 10.0
"""Processor time after which reading one sample counts as a hang."""

STUCK_SECONDS = 60.0
"""Elapsed time in which a process that waits, and not only for a processor, has to make progress."""

WITHOUT_PROC_SECONDS = 600.0
"""Elapsed time that counts as a hang where the system does not report the processor time of a process."""

POLL_SECONDS = 0.2
MEMORY_BYTES = 1 << 30
CHANCE_OF_MORE = 0.25
CHANCE_OF_FILES = 0.3
STATUS = Path("/proc/self/status")


class Result(NamedTuple):
    """The outcome of one mutation, by its number, and the mutators that were applied."""

    number: int
    kind: str
    details: str
    mutators: tuple[str, ...]
    is_failure: bool


class Times(NamedTuple):
    """What the system reports about a process."""

    seconds: float
    is_waiting: bool


class Worker:
    """A worker process; `run` returns the result of one mutation, whatever happens to the process."""

    def __init__(self, keep: Path) -> None:
        """Prepare a worker that keeps the mutated files of failures below `keep`."""
        self._keep = keep
        self._process: multiprocessing.process.BaseProcess | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-"))

    def run(self, name: str, seed: int, number: int, *, thorough: bool) -> Result:
        """Return the result of mutation `number` of a format, which seed and number determine."""
        if self._process is None:
            self._start()
        try:
            self._channel.send((name, seed, number, thorough))
            failure = self._wait()
            found = (
                self._channel.recv()
                if failure is None
                else Result(number, failure, "", self._applied(), True)
            )
        except (EOFError, OSError):
            self._process.join()
            details = f"exit code {self._process.exitcode}"
            found = Result(number, "killed", details, self._applied(), True)
            failure = "killed"
        if failure is not None:
            self._stop()
        if found.is_failure:
            self._save(found, name, seed)
        return found

    def close(self) -> None:
        """End the process and remove its files."""
        self._stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._channel, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, str(self._folder)), daemon=True)
        self._process.start()
        other.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._channel.close()
            self._process = None

    def _wait(self) -> str | None:
        """Wait for an answer; return "hang" if the process computes for too long, or waits without end."""
        began = progressed = time.monotonic()
        first = used = self._times().seconds
        while not self._channel.poll(POLL_SECONDS):
            now, (seconds, is_waiting) = time.monotonic(), self._times()
            if seconds > used or not is_waiting:
                progressed, used = now, seconds
            if used - first > HANG_SECONDS or now - progressed > STUCK_SECONDS:
                return "hang"
            if not STATUS.exists() and now - began > WITHOUT_PROC_SECONDS:
                return "hang"
        return None

    def _times(self) -> Times:
        """Return the processor time of the process, and whether it waits for something else than a processor."""
        try:
            text = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii")
        except OSError:
            return Times(0.0, is_waiting=False)
        fields = text.rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return Times(ticks / os.sysconf("SC_CLK_TCK"), is_waiting=fields[0] != "R")

    def _applied(self) -> tuple[str, ...]:
        note = self._folder / "applied"
        return tuple(note.read_text(encoding="utf-8").split()) if note.exists() else ()

    def _save(self, found: Result, name: str, seed: int) -> None:
        folder = self._keep / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}-{found.number}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / "case", folder, symlinks=True)
        command = f'make fuzz FORMAT="{name}" SEED={seed} ONLY={found.number}'
        text = f"{found.kind}\n{' '.join(found.mutators)}\nrepeat with: {command}\n\n{found.details}\n"
        (folder / "failure.txt").write_text(text, encoding="utf-8", errors="replace")


def serve(channel: Connection, folder: str) -> None:
    """Answer requests until the channel closes."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    from fuzz.formats import BY_NAME  # noqa: PLC0415 - after the environment is set

    server = Server(Path(folder))
    while True:
        try:
            name, seed, number, thorough = channel.recv()
        except EOFError:
            return
        channel.send(server.run(BY_NAME[name], seed, number, thorough=thorough))


class Server:
    """The state of a worker process: one intact sample per format."""

    def __init__(self, folder: Path) -> None:
        """Keep samples and the mutated copy below `folder`."""
        self._folder = folder
        self._intact: dict[str, Intact] = {}
        self._limited = False

    def run(self, form: Format, seed: int, number: int, *, thorough: bool) -> Result:
        """Return the result of one mutation."""
        from fuzz.oracle import judge  # noqa: PLC0415 - see serve

        chance = Random(f"{seed}/{form.name}/{number}")  # noqa: S311 - repeatable, not a secret
        case = self._folder / "case"
        sample = self._sample(form, case)
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(sample, case)
        files = sorted(file for file in case.rglob(form.pattern) if file.is_file())
        target = chance.choice(files)
        mutators = [chance.choice(form.mutators)]
        while chance.random() < CHANCE_OF_MORE:
            mutators.append(chance.choice(form.mutators))
        names = tuple(mutator.name for mutator in mutators)
        (self._folder / "applied").write_text(" ".join(names), encoding="utf-8")
        for mutator in mutators:
            mutator.apply(target, chance)
        revealed = is_revealed(form, mutators, sample / target.relative_to(case), target)
        is_by_file = chance.random() < CHANCE_OF_FILES and not form.is_directory
        paths = files if is_by_file else [case]
        self._limit_memory()
        outcome = judge(paths, self._intact[form.name], is_revealed=revealed, thorough=thorough)
        return self._within_memory(outcome, number, names)

    def _sample(self, form: Format, case: Path) -> Path:
        """Return the folder with the sample of a format; its result is that of a copy where mutated ones will be."""
        from fuzz.oracle import read_intact  # noqa: PLC0415 - see serve

        sample = self._folder / "samples" / form.name.replace(" ", "_")
        if form.name not in self._intact:
            shutil.rmtree(sample, ignore_errors=True)
            sample.mkdir(parents=True)
            form.write(sample)
            shutil.rmtree(case, ignore_errors=True)
            shutil.copytree(sample, case)
            self._intact[form.name] = read_intact(case)
        return sample

    def _limit_memory(self) -> None:
        """Forget the highest memory so far, and keep the process from exhausting the machine."""
        if not STATUS.exists():
            return
        import resource  # noqa: PLC0415 - not on every system

        if not self._limited:
            most = _status("VmSize") + 3 * MEMORY_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            self._limited = True
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def _within_memory(self, outcome: Outcome, number: int, names: tuple[str, ...]) -> Result:
        used = _status("VmHWM") if STATUS.exists() else 0
        if used > MEMORY_BYTES or "MemoryError" in outcome.details:
            return Result(number, "memory", f"{used >> 20} MiB\n{outcome.details}", names, True)
        return Result(number, outcome.kind, outcome.details, names, outcome.is_failure)


def is_revealed(form: Format, mutators: list[Mutator], before: Path, after: Path) -> bool:
    """Return whether the format shows the damage.

    If only some mutators reveal themselves, another one may be what changes the result.
    """
    return all(mutator.is_revealed for mutator in mutators) or form.reveals(before, after)


def _status(name: str) -> int:
    """Return a size in bytes from the status of this process."""
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10
