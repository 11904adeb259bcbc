"""Write requests to the processes of a running training; see control.py for what they do with them."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from stagescope.record.control import CONTROL_FILE, NEVER, Request
from stagescope.vocabulary.errors import OutputError
from stagescope.vocabulary.steps import EVERY_STEP_STOP, StepRange

if TYPE_CHECKING:
    from collections.abc import Iterable

LEAD_S = 3.0
"""How far ahead the step of a request is: processes look for requests every half second, and write as often."""
LEAST_STEPS = 2


def step_to_change_at(progress: Iterable[tuple[int, float, float]]) -> int:
    """Return a step that no rank has begun.

    `progress` has the last known step of each rank, how many seconds ago that was known, and its steps per second.

    >>> step_to_change_at([(10, 0.5, 2.0), (9, 4.0, 2.0)]), step_to_change_at([])
    (23, 0)
    """
    reached = [step + math.ceil((age_s + LEAD_S) * rate) for step, age_s, rate in progress]
    return max(reached) + LEAST_STEPS if reached else 0


def new_request(
    from_step: int,
    *,
    is_paused: bool | None = None,
    steps: StepRange | None = None,
    details: Iterable[str] | None = None,
    wants_stacks: bool = False,
) -> Request:
    """Return a request with an identifier of its own. `is_paused` False records every step again."""
    if steps is None and is_paused is not None:
        steps = NEVER if is_paused else StepRange(0, EVERY_STEP_STOP)
    chosen = None if details is None else frozenset(details)
    return Request(uuid4().hex, from_step, steps, chosen, wants_stacks)


def send(directory: str | os.PathLike[str], request: Request) -> None:
    """Replace the control file in a directory of recordings. Raises OutputError if it cannot be written."""
    folder = Path(directory)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f"{CONTROL_FILE}-", dir=folder)
        unfinished = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(request.text())
            # Processes of other users read it, and only those who may write the directory can replace it.
            unfinished.chmod(0o644 if folder.stat().st_mode & 0o044 else 0o600)
            unfinished.replace(folder / CONTROL_FILE)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as reason:
        raise OutputError.cannot_write(folder / CONTROL_FILE, reason) from reason
