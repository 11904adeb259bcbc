"""``stagescope run``: run a training command and record it."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path

import click

from stagescope.cli.console import echo, echo_exactly
from stagescope.cli.run_summary import print_summary
from stagescope.vocabulary.errors import CommandError, OutputError
from stagescope.vocabulary.language import LANGUAGE_VARIABLE, current_language, language_of
from stagescope.vocabulary.steps import parse_step_range


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""
    \b
    Examples:
      stagescope run -- torchrun --nproc-per-node 4 train.py
      stagescope run --steps 10:13 -o recordings -- torchrun --nproc-per-node 8 train.py --lr 1e-4
      stagescope run --keep 30m -o recordings -- torchrun --nproc-per-node 8 train.py
      stagescope run --also nvtx -- nsys profile -o report torchrun --nproc-per-node 8 train.py
      stagescope run -o /shared/recordings -- torchrun --nnodes 2 ... train.py    (on each node)
      srun stagescope run -o /shared/recordings -- python train.py
      eval "$(stagescope run -o recordings --print-environment)"

    Then: stagescope show DIR
    """,
)
@click.option(
    "--steps", metavar="A:B", help="Record steps A to B-1, counted from 0; omit to record every step."
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory for the recordings; omit to use stagescope-DATE-TIME.",
)
@click.option(
    "--keep",
    metavar="BOUNDS",
    help="Keep the last spans of each process and discard older ones: 500MB, 30m (minutes), 200steps, or several, "
    "such as 1GB,30m; without a size at most 1GiB; all for no limit.",
)
@click.option("--max-bytes", metavar="SIZE", help="The same as --keep SIZE; 0 for no limit.")
@click.option(
    "--also",
    metavar="LIST",
    help="Also annotate the actions for profilers that run at the same time: nvtx, mstx, kineto.",
)
@click.option(
    "--detail",
    type=click.Choice(["collectives", "memory"]),
    multiple=True,
    help="Also record the collectives inside actions one by one, or device memory at the end of each action.",
)
@click.option(
    "--timing",
    type=click.Choice(["device", "host"]),
    default="device",
    help="Clock of the actions on a GPU or NPU: with host they show their launch, and no events are recorded.",
)
@click.option("--force", is_flag=True, help="Replace the recordings in DIR.")
@click.option(
    "--join",
    is_flag=True,
    help="Record into DIR beside what is there; the commands of one launch find each other without it.",
)
@click.option(
    "--print-environment",
    is_flag=True,
    help="Run nothing; print the variables that record into DIR, for launchers that take an environment.",
)
@click.argument("command", metavar="-- COMMAND...", nargs=-1, type=click.UNPROCESSED)
def command(
    command: tuple[str, ...],
    steps: str | None,
    output: Path | None,
    also: str | None,
    *,
    keep: str | None,
    max_bytes: str | None,
    detail: tuple[str, ...],
    timing: str,
    force: bool,
    join: bool,
    print_environment: bool,
) -> int:
    """Run a training command and record it, without changes to its code.

    Every Python process of COMMAND that runs a pipeline schedule of torch, Megatron-core, DeepSpeed, Paddle, MindSpeed,
    FlagScale, Primus or ColossalAI records itself into DIR. Output, exit code and signals are those of the command;
    stagescope adds a few lines on standard error: where the recordings are, how much each rank recorded, and what
    could not be recorded.

    With srun or mpirun, each rank may be a command of its own: commands of one launch record into one DIR. If DIR has
    another run, or cannot be written, COMMAND runs unrecorded, with one line on standard error.
    """
    if sys.platform != "linux":
        raise CommandError.needs_linux("recording", sys.platform)
    from stagescope.record import launch
    from stagescope.record.mirrors import parse_profilers
    from stagescope.record.process_facts import launcher_rank
    from stagescope.record.retention import parse_keep
    from stagescope.record.run_directory import Launch, enter, recordings_in
    from stagescope.record.run_identity import LAUNCH_VARIABLE, runs_of_launcher
    from stagescope.record.session import (
        ALSO_VARIABLE,
        DETAIL_VARIABLE,
        KEEP_VARIABLE,
        MAX_BYTES_VARIABLE,
        STEPS_VARIABLE,
    )
    from stagescope.record.timing import TIMING_VARIABLE

    if steps is not None:
        parse_step_range(steps)
    if keep is None and max_bytes is None:
        keep = os.environ.get(KEEP_VARIABLE) or None
    parse_keep(keep, max_bytes)
    mirrors = parse_profilers(also) if also is not None else ()
    settings = {ALSO_VARIABLE: ",".join(mirrors), DETAIL_VARIABLE: ",".join(detail), TIMING_VARIABLE: timing}
    directory = output or Path(time.strftime("stagescope-%Y%m%d-%H%M%S"))
    if print_environment:
        bounds = {KEEP_VARIABLE: keep, MAX_BYTES_VARIABLE: max_bytes}
        return _print_environment(directory, {**settings, **bounds, STEPS_VARIABLE: steps})
    if not command:
        raise click.UsageError("missing COMMAND, after --", click.get_current_context())
    own = Launch(runs_of_launcher(os.environ), launcher_rank(os.environ), force=force, join=join)
    try:
        place = enter(directory, own)
    except OutputError as error:  # the training must start in any case
        echo(f"stagescope: not recorded: {error}", err=True)
        ended = launch.run_command(command, os.environ)
        launch.end_by_same_signal(ended)
        return ended.exit_code
    environment = launch.recording_environment(
        directory, steps=steps, run=place.run, inherited=os.environ, max_bytes=max_bytes
    )
    environment |= {LAUNCH_VARIABLE: own.number, KEEP_VARIABLE: keep or "", **settings, **_stated_language()}
    before = recordings_in(directory)
    try:
        ended = launch.run_command(command, environment)
    finally:
        place.leave(directory)
    print_summary(
        directory, launch.recordings_of(own.number, recordings_in(directory) - before), ended, steps
    )
    launch.end_by_same_signal(ended)
    return ended.exit_code


def _stated_language() -> dict[str, str]:
    """Return the variable for the language of --lang, in which the processes print what they could not record."""
    language = current_language()
    return {} if language_of(os.environ) == language else {LANGUAGE_VARIABLE: language}


def _print_environment(directory: Path, settings: dict[str, str | None]) -> int:
    from stagescope.record.launch import activation

    for name, value in activation(directory, settings).items():
        behind = "${PYTHONPATH:+:$PYTHONPATH}" if name == "PYTHONPATH" else ""
        echo_exactly(f"export {name}={shlex.quote(value)}{behind}")
    return 0
