"""``stagescope demo``: train, record, report and draw a small pipeline on this machine."""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.cli.console import echo, echo_data
from stagescope.demo.names import SCHEDULES, THEORY
from stagescope.exporters.new_files import create, make_directory
from stagescope.vocabulary.errors import CommandError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = 4
STEPS = 5
RECORDED = f"1:{STEPS}"
PICTURES = (("html", "demo.html"), ("svg", "demo.svg"), ("pftrace", "demo.pftrace"), ("chrome", "demo.json"))


@click.command(
    "demo",
    epilog="""
    \b
    Examples:
      stagescope demo
      stagescope demo --schedule ZBVZeroBubble -o demo-zbv
    """,
)
@click.option(
    "--schedule", type=click.Choice(SCHEDULES), default="1F1B", show_default=True, help="Schedule to run."
)
@click.option("--microbatches", type=click.IntRange(min=RANKS), default=8, show_default=True)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Directory to write.",
)
@click.option("--force", is_flag=True, help="Replace the files of an earlier demo in DIR.")
def command(schedule: str, microbatches: int, output: Path, *, force: bool) -> int:
    """Train a small pipeline on this machine, record it, and report where its time went.

    Four local processes train with torch.distributed.pipelining. Every stage computes by sleeping, so the picture
    matches the textbook even on two cores. Step 0 is not recorded, because it sets up connections.
    """
    if sys.platform != "linux":
        raise CommandError.needs_linux("the demo", sys.platform)
    if find_spec("torch") is None:
        raise CommandError.missing_library("torch", "the demo", "pip install 'stagescope[demo]'")
    _prepare(output, force=force)
    progress = _progress()
    progress(f"training {STEPS} steps of {schedule} on {RANKS} processes (about 20 s)")
    recordings = _record(output, ["--schedule", schedule, "--microbatches", str(microbatches)])
    progress("reading the recordings and drawing")
    code = _show(recordings, output, theory_sentence(schedule, microbatches))
    _print_next_steps(output, recordings)
    return code


def _prepare(output: Path, *, force: bool) -> None:
    """Create the output directory. Raises OutputError if it is not empty and `force` is not set."""
    try:
        if output.exists() and (not output.is_dir() or any(output.iterdir())) and not force:
            raise OutputError.exists(output)
        make_directory(output)
    except OSError as reason:
        raise OutputError.cannot_write(output, reason) from None


def _record(output: Path, options: list[str]) -> Path:
    """Run the training with recording; return the directory of the recordings."""
    from stagescope.record import launch
    from stagescope.record.run_directory import Launch, enter

    recordings, log = output / "recording", output / "training.log"
    place = enter(recordings, Launch([], force=True))
    environment = launch.recording_environment(
        recordings,
        steps=RECORDED,
        run="demo",
        inherited={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": _loopback()},
    )
    training = Path(__file__).parents[1] / "demo" / "train.py"
    command = launch_command(training, [f"--steps={STEPS}", *options])
    log.unlink(missing_ok=True)
    with os.fdopen(create(log), "wb") as file:
        ended = launch.run_command(command, environment, file)
    place.leave(recordings)
    if ended.exit_code:
        echo_data(log.read_text(encoding="utf-8", errors="replace")[-2000:], err=True)
        raise CommandError.failed("the training", ended.exit_code, log)
    return recordings


def launch_command(script: Path, options: list[str]) -> list[str]:
    """Return the command that starts `script` on every rank, equivalent to torchrun."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={RANKS}",
        "--master-addr=127.0.0.1",
        f"--master-port={_free_port()}",
        str(script),
        *options,
    ]


def theory_sentence(schedule: str, microbatches: int) -> str:
    """Return the schedule bubble of the demo in a sentence: with equal actions and transfers that take no time."""
    from stagescope import schedules
    from stagescope.vocabulary.ratios import percent_text

    chunks = 2 if schedule in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble") else None
    actions = schedules.order(THEORY[schedule], ranks=RANKS, microbatches=microbatches, chunks=chunks)
    ideal = schedules.simulate(actions, schedules.Costs(forward=1, backward_input=1, backward_weight=1))
    return (
        f"The bubble of an ideal {schedule} on {RANKS} ranks with {microbatches} micro-batches is "
        f"{percent_text(ideal.bubble_fraction)}: equal stages, and transfers that take no time."
    )


def _show(recordings: Path, output: Path, theory: str) -> int:
    """Print chart and report, write the pictures, and return the exit code."""
    from stagescope import api
    from stagescope.cli.json_file import write_json
    from stagescope.cli.reading import exit_code, read_paths
    from stagescope.cli.report import print_report
    from stagescope.cli.show import print_chart

    timeline = read_paths([recordings])
    clocks = api.clock_report(timeline)
    report = api.analyze(timeline)
    print_chart(timeline)
    echo()
    print_report(report, clocks)
    echo()
    echo(theory)
    write_json(api.report_json(report), output / "report.json", force=True)
    for name, file in PICTURES:
        api.export(report, output / file, format=name, force=True)
    return exit_code(timeline, report.diagnostics)


def _print_next_steps(output: Path, recordings: Path) -> None:
    echo(f"""
Open it:
  {output}/demo.html      in any browser: the whole run, with zoom, search and report
  {output}/demo.svg       a picture of one step, for a document
  {output}/demo.pftrace   in https://ui.perfetto.dev, "Open trace file": every span, with flows
  {output}/demo.json      in chrome://tracing
  stagescope show {recordings} --step 2
Record your own: stagescope run -- torchrun --nproc-per-node 4 train.py""")


def _progress() -> Callable[[str], None]:
    """Return a function that prints the progress of the demo on standard error."""

    def show(text: str) -> None:
        echo(f"stagescope demo: {text} ...", err=True)

    return show


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _loopback() -> str:
    """Return the name of the loopback interface, which the processes of the demo communicate over."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), names[0])
