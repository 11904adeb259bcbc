"""``stagescope demo``: the whole way on this machine, from a training to a picture."""

from __future__ import annotations

import os
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stagescope.demo.names import SCHEDULES, THEORY
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
    "--schedule", type=click.Choice(SCHEDULES), default="1F1B", show_default=True, help="What to run."
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
@click.option("--force", is_flag=True, help="Replace what an earlier demo left in DIR.")
def command(schedule: str, microbatches: int, output: Path, *, force: bool) -> int:
    """Train a small real pipeline on this machine, record it, and show where its time went.

    Four local processes train with torch.distributed.pipelining; every stage's work is a short sleep, so that the
    picture is the textbook's even on two cores. Step 0 is not recorded: it sets up connections.
    """
    if find_spec("torch") is None:
        raise CommandError.missing_library("torch", "the demo", "pip install 'stagescope[demo]'")
    _prepare(output, force=force)
    progress = _progress()
    progress(f"training {STEPS} steps of {schedule} on {RANKS} processes (about 20 s)")
    recordings = _record(output, ["--schedule", schedule, "--microbatches", str(microbatches)])
    progress("reading the recordings, drawing")
    code = _show(recordings, output, theory_sentence(schedule, microbatches))
    _say_how_to_open(output, recordings)
    return code


def _prepare(output: Path, *, force: bool) -> None:
    """Refuse to overwrite; with `force`, remove what a demo leaves behind and nothing else."""
    try:
        if output.exists() and (not output.is_dir() or any(output.iterdir())) and not force:
            raise OutputError.exists(output)
        output.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise OutputError.cannot_write(output, reason) from None


def _record(output: Path, options: list[str]) -> Path:
    """Run the training under the recorder; return the directory of the recordings."""
    from stagescope.record import launch

    recordings, log = output / "recording", output / "training.log"
    launch.prepare_directory(recordings, force=True)
    environment = launch.recording_environment(
        recordings,
        steps=RECORDED,
        run="demo",
        inherited={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": _loopback()},
    )
    training = Path(__file__).parents[1] / "demo" / "train.py"
    command = launch_command(training, [f"--steps={STEPS}", *options])
    with log.open("wb") as file:
        ended = launch.run_command(command, environment, file)
    if ended.exit_code:
        click.echo(log.read_text(encoding="utf-8", errors="replace")[-2000:], err=True)
        raise CommandError.failed("the training", ended.exit_code, log)
    return recordings


def launch_command(script: Path, options: list[str]) -> list[str]:
    """Return the command that starts `script` on every rank, as a user would with torchrun."""
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
    """Return what part of the demo's bubble its schedule makes by itself: all actions alike, transfers for nothing."""
    from stagescope import schedules
    from stagescope.reports.tables import percent_text

    chunks = 2 if schedule in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble") else None
    actions = schedules.order(THEORY[schedule], ranks=RANKS, microbatches=microbatches, chunks=chunks)
    ideal = schedules.simulate(actions, schedules.Costs(forward=1, backward_input=1, backward_weight=1))
    return (
        f"The schedule alone would make it {percent_text(ideal.bubble_fraction)}: so much {schedule} idles on {RANKS} "
        f"ranks with {microbatches} micro-batches even if transfers took no time."
    )


def _show(recordings: Path, output: Path, theory: str) -> int:
    """Print chart and report, and write the pictures; return the exit code that the data deserve."""
    from stagescope import api as workflow
    from stagescope.cli.json_file import write_json
    from stagescope.cli.reading import exit_code, read_paths
    from stagescope.cli.report import print_report, report_json
    from stagescope.cli.show import print_chart

    read = read_paths([recordings])
    timeline = read.timeline
    report = workflow.analyze(timeline)
    print_chart(timeline)
    click.echo()
    print_report(report, read.clocks)
    click.echo()
    click.echo(theory)
    write_json(report_json(report, read.clocks), output / "report.json", force=True)
    for name, file in PICTURES:
        workflow.export(timeline, output / file, format=name, force=True)
    return exit_code(timeline)


def _say_how_to_open(output: Path, recordings: Path) -> None:
    click.echo(f"""
Open it:
  {output}/demo.html      in any browser: the whole run, to zoom, search and ask
  {output}/demo.svg       the picture of one step, for a document
  {output}/demo.pftrace   at https://ui.perfetto.dev, "Open trace file": every span, with arrows
  {output}/demo.json      in chrome://tracing
  stagescope show {recordings} --step 2
Record your own: stagescope run -- torchrun --nproc-per-node 4 train.py""")


def _progress() -> Callable[[str], None]:
    """Return what says on standard error how far the demo is."""

    def say(text: str) -> None:
        click.echo(f"stagescope demo: {text} ...", err=True)

    return say


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _loopback() -> str:
    """Return the name of the loopback interface, over which the demo's processes talk."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), names[0])
