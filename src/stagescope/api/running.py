"""What a training does while it runs: why it hangs, and requests to its processes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stagescope.analysis.hangs.conditions import QUIET_AFTER_S
from stagescope.analysis.hangs.culprits import HangReport
from stagescope.analysis.hangs.culprits import find_hang as find_hang_of
from stagescope.ingest.recording.latest import read_process_states
from stagescope.record.control import KERNELS, MOST_TRACED, can_be_traced
from stagescope.record.format import SUFFIX
from stagescope.record.requests import new_request, send, step_to_change_at
from stagescope.reports.hang_text import hang_json, hang_rows, hang_sentences
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.steps import parse_step_range

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from stagescope.model.process_states import ProcessState
    from stagescope.record.control import Request

__all__ = [
    "Answers",
    "HangReport",
    "control",
    "find_hang",
    "hang_json",
    "hang_rows",
    "hang_sentences",
]

PATIENCE_S = 10.0
BETWEEN_LOOKS_S = 0.25


@dataclass(frozen=True)
class Answers:
    """What the processes of a training answered to a request, by rank.

    `accepted` are the ranks that will follow it, `applied` the first step of each rank that does, `refused` the reasons
    of others, `silent` the ranks without an answer, `ended` those whose process has ended.
    """

    request: Request
    accepted: tuple[int, ...]
    applied: dict[int, int]
    refused: dict[int, str]
    silent: tuple[int, ...]
    ended: tuple[int, ...]


def find_hang(
    *directories: str | os.PathLike[str], quiet_after_s: float = QUIET_AFTER_S, stacks: bool = False
) -> HangReport:
    """Return why a training does not go on: what each rank does, and which rank the others wait for.

    `directories` are those of its recordings. A rank counts as stopped if it has recorded nothing for `quiet_after_s`
    seconds and for three times its longest earlier pause. With `stacks`, all processes are asked for the stacks of
    their threads first. Only the last megabyte of each recording is read.

    Raises InputError if there is no recording, OutputError if `stacks` cannot be asked for.
    """
    if stacks:
        for directory in directories:
            control(directory, stacks=True)
    return find_hang_of(read_process_states(directories), quiet_after_s)


def control(
    directory: str | os.PathLike[str],
    *,
    pause: bool = False,
    resume: bool = False,
    steps: str | None = None,
    details: Iterable[str] | None = None,
    stacks: bool = False,
    patience_s: float = PATIENCE_S,
) -> Answers:
    """Change what a running training records, and return what its processes answered within `patience_s` seconds.

    `pause` and `resume` end and continue recording, `steps` limits it to a range such as ``"1200:1205"``, `details`
    replaces the details (``collectives``, ``memory``, ``kernels``; empty for none), and `stacks` has every process
    write the stacks of its threads. All ranks change at the same step, which none of them has begun.

    Without any recording in the directory, the request waits for the processes to begin their first step.

    Raises UsageError without a change, for several of `pause`, `resume` and `steps`, for steps that are over before all
    ranks can change, and for kernels without a short range of steps; InputError if there is no such directory;
    OutputError if the request cannot be written there.
    """
    chosen = [
        name for name, given in (("pause", pause), ("resume", resume), ("steps", steps is not None)) if given
    ]
    if len(chosen) > 1:
        raise UsageError.one_of(("--pause", "--resume", "--steps"), tuple(f"--{name}" for name in chosen))
    if not chosen and details is None and not stacks:
        raise UsageError.no_change()
    wanted = None if steps is None else parse_step_range(steps)
    if details is not None and KERNELS in (details := tuple(details)) and not can_be_traced(wanted):
        raise UsageError.only_with("--detail kernels", f"--steps A:B with at most {MOST_TRACED} steps")
    states = _states_in(directory)
    earliest = step_to_change_at(_progress(states))
    if wanted is not None and wanted.stop <= earliest:
        raise UsageError.unusable_value(
            "--steps", steps or "", f"the first step that all ranks can reach is {earliest}"
        )
    from_step = 0 if wanted is not None and details is None else earliest
    paused = True if pause else False if resume else None
    request = new_request(from_step, is_paused=paused, steps=wanted, details=details, wants_stacks=stacks)
    send(Path(directory), request)
    return _answers(directory, request, patience_s)


def _states_in(directory: str | os.PathLike[str]) -> list[ProcessState]:
    """Return the states of all ranks, none if the directory exists and no process has recorded anything yet.

    A process that has not begun its first step finds the request then.
    """
    if Path(directory).is_dir() and not any(Path(directory).rglob(f"*{SUFFIX}")):
        return []
    return read_process_states([directory])


def _progress(states: Sequence[ProcessState]) -> Iterable[tuple[int, float, float]]:
    """Yield the last known step of each rank that runs, how old that is, and its steps per second."""
    for state in states:
        if state.step is not None and state.end_reason is None:
            ages = [age for age in (state.quiet_s, state.state_s) if age is not None]
            yield state.step, min(ages, default=0.0), state.steps_per_s


def _answers(directory: str | os.PathLike[str], request: Request, patience_s: float) -> Answers:
    """Wait until all processes that run have answered."""
    until_s = time.monotonic() + patience_s
    while True:
        states = _states_in(directory)
        answers = _answers_of(states, request)
        if (states and not answers.silent) or time.monotonic() >= until_s:
            return answers
        time.sleep(BETWEEN_LOOKS_S)


def _answers_of(states: Sequence[ProcessState], request: Request) -> Answers:
    accepted, applied, refused, silent, ended = [], {}, {}, [], []
    for state in states:
        reason = state.request.get("refused")
        if state.end_reason is not None or (state.exists is False and state.written_s > PATIENCE_S):
            ended.append(state.rank)
        elif isinstance(reason, str):
            refused[state.rank] = reason
        elif state.request.get("request") == request.number:
            accepted.append(state.rank)
            step = state.request.get("applied_step")
            if isinstance(step, int):
                applied[state.rank] = step
        else:
            silent.append(state.rank)
    return Answers(request, tuple(accepted), applied, refused, tuple(silent), tuple(ended))
