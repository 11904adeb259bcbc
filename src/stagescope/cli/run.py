"""``stagescope run``: a training command with recording on."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.vocabulary.steps import parse_step_range

if TYPE_CHECKING:
    from stagescope.record.launch import Ended

RECORDED = "the schedules of torch, Megatron-core, DeepSpeed, Paddle, MindSpeed and ColossalAI"


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="""
    \b
    Examples:
      stagescope run -- torchrun --nproc-per-node 4 train.py
      stagescope run --steps 10:13 -o recordings -- torchrun --nproc-per-node 8 train.py --lr 1e-4
      stagescope run --also nvtx -- nsys profile -o report torchrun --nproc-per-node 8 train.py
      stagescope run --join -o /shared/recordings -- torchrun --nnodes 2 ... train.py    (on each node)

    Then: stagescope show DIR
    """,
)
@click.option(
    "--steps", metavar="A:B", help="Record steps A to B-1, counted from 0; every step unless given."
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Directory for the recordings; stagescope-DATE-TIME unless given.",
)
@click.option(
    "--max-bytes",
    metavar="SIZE",
    help="Keep at most SIZE a process, as in 512MiB: the oldest spans are let go; 1GiB unless given, 0 for no bound.",
)
@click.option(
    "--also",
    metavar="LIST",
    help="Show the recorded actions in other profilers as well, while those run: nvtx, mstx, kineto.",
)
@click.option("--force", is_flag=True, help="Replace the recordings in DIR.")
@click.option("--join", is_flag=True, help="Record into DIR together with other nodes of the same run.")
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    command: tuple[str, ...],
    steps: str | None,
    output: Path | None,
    max_bytes: str | None,
    also: str | None,
    *,
    force: bool,
    join: bool,
) -> int:
    """Run a training command with recording on, its code unchanged.

    Every Python process of COMMAND that runs a pipeline schedule (of torch, Megatron-core, DeepSpeed, Paddle,
    MindSpeed or ColossalAI) records itself into DIR. Output, exit code and signals are the command's own;
    stagescope adds two lines on standard error.
    """
    from stagescope.record import launch
    from stagescope.record.mirrors import parse_profilers
    from stagescope.record.segments import parse_bound
    from stagescope.record.session import ALSO_VARIABLE

    if steps is not None:
        parse_step_range(steps)
    bound = parse_bound(max_bytes) if max_bytes is not None else None
    mirrors = parse_profilers(also) if also is not None else ()
    directory = output or Path(time.strftime("stagescope-%Y%m%d-%H%M%S"))
    launch.prepare_directory(directory, force=force, join=join)
    run = directory.resolve().name if join else uuid.uuid4().hex
    environment = launch.recording_environment(
        directory, steps=steps, run=run, inherited=os.environ, max_bytes=bound
    )
    environment[ALSO_VARIABLE] = ",".join(mirrors)
    before = launch.recordings_in(directory)
    try:
        ended = launch.run_command(command, environment)
    finally:
        _remove_if_empty(directory)
    _say_what_came(directory, launch.recordings_in(directory) - before, ended)
    launch.end_by_same_signal(ended)
    return ended.exit_code


def _remove_if_empty(directory: Path) -> None:
    """Leave no empty directory behind a command that recorded nothing."""
    try:
        directory.rmdir()
    except OSError:
        return


def _say_what_came(directory: Path, recordings: set[Path], ended: Ended) -> None:
    from stagescope.record.launch import count_processes

    if ended.signal_number is not None:
        click.echo(f"stagescope: the command was ended by signal {ended.signal_number}", err=True)
    elif ended.exit_code:
        click.echo(f"stagescope: the command failed with exit code {ended.exit_code}", err=True)
    if recordings:
        size_kb = sum(recording.stat().st_size for recording in recordings) / 1e3
        processes = count_processes(recordings)
        files = "1 process" if processes == 1 else f"{processes} processes"
        click.echo(f"stagescope: recorded {files} in {directory} ({size_kb:.0f} kB)", err=True)
        click.echo(f"  look at it with: stagescope show {directory}", err=True)
    else:
        click.echo(
            "stagescope: nothing was recorded: no process finished a action of a pipeline schedule", err=True
        )
        click.echo(f"  recorded are: {RECORDED}, and spans marked by hand", err=True)
