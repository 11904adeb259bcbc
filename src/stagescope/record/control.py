"""Requests to the processes of a run while it trains: which steps to record, in which detail, and their stacks.

`stagescope control` replaces one file in the directory of the recordings. The writer thread of each process looks at it
twice a second, and the training thread applies a request when it begins the step that the request names, so that all
ranks change together. Only users who may write to the directory may control the recording: a file that more users may
write than the directory is ignored, and so is one of another user in a directory that everybody may write to. A
request contains numbers and words of a fixed set; nothing of it is
executed.
"""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.steps import EVERY_STEP_STOP, StepRange, parse_step_range

if TYPE_CHECKING:
    from stagescope.record.recorder import Recorder

CONTROL_FILE = ".stagescope-control"
FORMAT = "stagescope control"
VERSION = 1
MOST_BYTES = 2**16
COLLECTIVES, MEMORY, KERNELS = "collectives", "memory", "kernels"
DETAILS = (COLLECTIVES, MEMORY, KERNELS)
MOST_TRACED = 20
"""Steps whose kernels are traced by one request: the profiler keeps all of them in memory until they are written."""
NEVER = StepRange(EVERY_STEP_STOP, EVERY_STEP_STOP)
"""A range without any step."""

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Request(NamedTuple):
    """What is recorded from step `from_step` on: the steps and the details.

    `steps` is None if the range stays, and `details` is None if they stay. `wants_stacks` asks for the stacks of all
    threads, at once.
    """

    number: str
    from_step: int = 0
    steps: StepRange | None = None
    details: frozenset[str] | None = None
    wants_stacks: bool = False

    def text(self) -> str:
        """Return the content of the control file."""
        steps = None if self.steps is None else "none" if self.steps == NEVER else str(self.steps)
        return json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                "request": self.number,
                "from_step": self.from_step,
                "steps": steps,
                "details": None if self.details is None else sorted(self.details),
                "stacks": self.wants_stacks,
            }
        )


def parse_request(text: str | bytes) -> Request:
    """Return the request of a control file. Raises ValueError, with the reason, for anything else."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise ValueError("it is no control file")
    if facts.get("version") != VERSION:
        raise ValueError(f"version {VERSION} is expected")
    number, from_step = facts.get("request"), facts.get("from_step")
    details, wants_stacks = facts.get("details"), facts.get("stacks")
    if not isinstance(number, str) or not 0 < len(number) <= 64 or not number.isalnum():  # noqa: PLR2004  # an identifier
        raise ValueError("its request has no identifier")
    if type(from_step) is not int or not 0 <= from_step < EVERY_STEP_STOP:
        raise ValueError("from_step is no step")
    if details is not None and not (isinstance(details, list) and all(each in DETAILS for each in details)):
        raise ValueError(f"details are not among {', '.join(DETAILS)}")
    if type(wants_stacks) is not bool:
        raise ValueError("stacks is neither true nor false")
    chosen = None if details is None else frozenset(details)
    steps = _steps(facts.get("steps"))
    if chosen is not None and KERNELS in chosen and not can_be_traced(steps):
        raise ValueError(f"kernels are traced in at most {MOST_TRACED} steps, and these are not stated")
    return Request(number, from_step, steps, chosen, wants_stacks)


def can_be_traced(steps: StepRange | None) -> bool:
    """Return whether these are few enough steps to trace their kernels."""
    return steps is not None and 0 < steps.stop - steps.start <= MOST_TRACED


def _steps(value: Any) -> StepRange | None:
    if value is None:
        return None
    if value == "none":
        return NEVER
    if not isinstance(value, str):
        raise ValueError("steps are no range")  # noqa: TRY004  # one kind of error for a wrong file
    try:
        return parse_step_range(value)
    except UsageError as error:
        raise ValueError(f"steps are no range: {error}") from None


class Control:
    """Looks for requests, and applies them to one recorder. Created and called by the writer thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._path = os.path.join(recorder.directory, CONTROL_FILE)
        self._seen: tuple[int, int, int] | None = None
        self._reported: tuple[str, bool] | None = None
        self._refused = ""
        self.request: Request | None = None

    def look(self) -> dict[str, object] | None:
        """Read a new request, and return what to report about it: that it was accepted, refused or applied."""
        found = self._read_if_changed()
        if found is not None:
            self._take(found)
        if self._refused:
            refused, self._refused = self._refused, ""
            return {"refused": refused}
        request = self.request
        if request is None:
            return None
        if self._recorder.requested is request and not self._recorder.training_thread:
            self._recorder.apply(request)  # a process that marks no steps
        is_applied = self._recorder.requested is not request
        if self._reported == (request.number, is_applied):
            return None
        self._reported = (request.number, is_applied)
        answer = {"request": request.number, "from_step": request.from_step, "is_applied": is_applied}
        changes = request.steps is not None or request.details is not None
        return answer | ({"applied_step": self._recorder.applied_step} if is_applied and changes else {})

    @property
    def wants_stacks(self) -> bool:
        """Whether the request of the last report asks for stacks that have not been reported yet."""
        request = self.request
        return request is not None and request.wants_stacks

    def _take(self, text: bytes) -> None:
        try:
            request = parse_request(text)
        except ValueError as reason:
            self._refused = str(reason)
            return
        if self.request is not None and request.number == self.request.number:
            return
        self.request = request
        if request.steps is None and request.details is None:
            return
        self._recorder.requested = request

    def notice(self) -> None:
        """Read a request that was there before the process began its first step, which may already follow it."""
        found = self._read_if_changed()
        if found is not None:
            self._take(found)

    def _read_if_changed(self) -> bytes | None:
        try:
            facts = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return None
        identity = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if identity == self._seen:
            return None
        self._seen = identity
        try:
            return self._read()
        except OSError as error:
            self._refused = error.strerror or str(error)
            return None

    def _read(self) -> bytes | None:
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            facts = os.fstat(descriptor)
            directory = os.stat(self._recorder.directory)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
                self._refused = "it is no small regular file"
            elif directory.st_mode & stat.S_IWOTH and facts.st_uid not in {0, os.geteuid(), directory.st_uid}:
                self._refused = "another user wrote it, in a directory that everybody may write to"
            elif facts.st_mode & _OTHERS_MAY_WRITE & ~directory.st_mode:
                self._refused = "more users may write the file than the directory"
            else:
                return os.read(descriptor, MOST_BYTES)
        finally:
            os.close(descriptor)
        return None
