"""``stagescope watch``: a training while it runs, with alarms."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stagescope.cli.console import echo, replaced_text
from stagescope.cli.ending import ending
from stagescope.cli.finite_range import FiniteRange
from stagescope.cli.hang_options import after_option
from stagescope.vocabulary.errors import UsageError
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stagescope.api.notifications import Notifier
    from stagescope.api.watching import Update, Watcher

EXIT_ALARM = 3


@click.command(
    "watch",
    epilog="""
    \b
    Examples:
      stagescope watch recordings
      stagescope watch recordings --alert 'bubble>0.35 for 20 steps' --alert 'iteration>1.5s for 3 steps'
      stagescope watch recordings --on-alarm 'tee -a alarms.jsonl'
      stagescope watch recordings --metrics 127.0.0.1:9877
      stagescope watch recordings --otlp http://127.0.0.1:4318 --log-to tensorboard:runs/a
      stagescope watch recordings --until-alarm || stagescope hang recordings --stacks
      stagescope watch recordings --json | jq -c 'select(.event == "alarm")'
    """,
)
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--alert",
    "alerts",
    metavar="CONDITION",
    multiple=True,
    help="Raise an alarm while a condition holds, such as 'bubble>0.35 for 20 steps'; may be repeated.",
)
@click.option(
    "--least-change",
    metavar="FRACTION",
    type=FiniteRange(0.0, 10.0),
    default=0.05,
    show_default=True,
    help="Smallest lasting increase in a rank, link, cause or iteration that raises an alarm; 0 for none.",
)
@after_option
@click.option(
    "--restart-grace",
    metavar="S",
    type=FiniteRange(min=0.0),
    default=60.0,
    show_default=True,
    help="Seconds after a crash in which a launcher may start the training again; 0 to end at once.",
)
@click.option(
    "--on-alarm",
    metavar="COMMAND",
    help="Run a command for each alarm, with the alarm as JSON on standard input.",
)
@click.option("--webhook", metavar="URL", help="Send each alarm as JSON to a web server.")
@click.option(
    "--metrics",
    metavar="HOST:PORT",
    help="Serve the values of the last step to Prometheus at http://HOST:PORT/metrics.",
)
@click.option(
    "--otlp",
    metavar="URL",
    help="Send the same values to an OpenTelemetry collector at URL, every ten seconds.",
)
@click.option("--otlp-spans", is_flag=True, help="Send steps and actions to it as well, as linked spans.")
@click.option(
    "--log-to",
    "loggers",
    metavar="NAME[:DIR]",
    multiple=True,
    help="Log the values of each step to mlflow, wandb or tensorboard; may be repeated.",
)
@click.option(
    "--metrics-per-rank", is_flag=True, help="The values of each rank and link are metrics as well."
)
@click.option("--until-alarm", is_flag=True, help="End at the first alarm.")
@click.option("--seconds", metavar="S", type=FiniteRange(min=0.0), help="End after this time.")
@click.option(
    "--interval", metavar="S", type=FiniteRange(0.1, 3600.0), default=1.0, show_default=True,
    help="Seconds between updates.",
)  # fmt: skip
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON lines: one object for each step, alarm and hang."
)
def command(directories: Sequence[Path], **options: Any) -> int:
    """Watch a training while it runs: its steps, where their time goes, what each rank does, and alarms.

    DIR is the directory of its recordings. An alarm is raised if the iteration, a cause of lost time, the actions of a
    rank or the messages of a link take longer than before and this lasts, if a condition of --alert holds, and if the
    training hangs or crashes. Conditions can name bubble, iteration, step, and the causes of lost time, which are
    fractions of the iteration.

    The command ends when the training ends, with Ctrl-C, or after --seconds. After a crash, it waits for a new attempt
    during --restart-grace, unless the launcher has ended or has no restart left. The exit code is 3 if there was an
    alarm, and 0 otherwise.
    """
    ended = threading.Event()
    with ending(ended):  # from here on: loading the libraries takes a second or more
        notifier, raised = _watch(directories, ended, **options)
    notifier.wait()
    return EXIT_ALARM if raised else 0


def _watch(directories: Sequence[Path], ended: threading.Event, **options: Any) -> tuple[Notifier, bool]:
    """Watch until the command ends; return what still sends alarms, and whether there was one."""
    from stagescope import api
    from stagescope.api.notifications import Notifier, check_url, parse_command

    words = parse_command(options["on_alarm"]) if options["on_alarm"] is not None else []
    url = check_url(options["webhook"]) if options["webhook"] is not None else None
    if options["otlp"] is not None:
        check_url(options["otlp"], "--otlp")
    elif options["otlp_spans"]:
        raise UsageError.only_with("--otlp-spans", "--otlp")
    watcher = api.Watcher(
        *directories,
        alerts=options["alerts"],
        least_change=options["least_change"],
        quiet_after_s=options["after"],
        restart_grace_s=options["restart_grace"],
    )
    notifier = Notifier(words, url, lambda text: echo(text, err=True))
    raised = waits = False
    if ended.is_set():  # before anything was opened
        return notifier, raised
    until_s = time.monotonic() + options["seconds"] if options["seconds"] is not None else float("inf")
    with ending(ended), ExitStack() as stack:
        takers = [_output(stack, watcher, as_json=options["as_json"]), *_outlets(stack, **options)]
        while not ended.is_set():
            update = _update(watcher, directories)
            if update is not None:
                raised = _notify(update, notifier) or raised
                _show(update, takers)
            elif not waits:
                waits = True
                _warn(f"waiting for recordings in {', '.join(map(str, directories))}")
            is_over = update is not None and update.is_over and not update.restart_wait_s
            if is_over or (raised and options["until_alarm"]):
                break
            remaining_s = until_s - time.monotonic()
            if remaining_s <= 0:
                break
            if update is None or not update.has_more:
                ended.wait(min(options["interval"], remaining_s))
    return notifier, raised


def _update(watcher: Watcher, directories: Sequence[Path]) -> Update | None:
    """Return what is new, None as long as nothing is recorded in directories that exist."""
    from stagescope.record.format import SUFFIX

    if all(path.is_dir() and not any(path.rglob(f"*{SUFFIX}")) for path in directories):
        return None
    return watcher.update()


def _notify(update: Update, notifier: Notifier) -> bool:
    """Send the alarms that began or ended, and whether the training stopped; return whether there is anything."""
    from stagescope.cli.watch_output import alarm_events

    events = list(alarm_events(update))
    for event in events:
        notifier.send(event)
    return bool(events)


def _show(update: Update, takers: Sequence[Callable[[Update], None]]) -> None:
    for taker in takers:
        taker(update)


def _outlets(
    stack: ExitStack, *, metrics_per_rank: bool, otlp_spans: bool, **options: Any
) -> list[Callable[[Update], None]]:
    """Open what the values are sent to until the stack is left, and return what takes updates."""
    takers = []
    if options["metrics"] is not None:
        takers.append(_metrics(stack, options["metrics"], per_rank=metrics_per_rank))
    if options["otlp"] is not None:
        from stagescope.api.telemetry import send_telemetry

        sending = send_telemetry(options["otlp"], _warn, per_rank=metrics_per_rank, spans=otlp_spans)
        takers += stack.enter_context(sending)
    for text in options["loggers"]:
        from stagescope.api.run_loggers import log_run

        takers.append(stack.enter_context(log_run(text, per_rank=metrics_per_rank)))
    return takers


def _warn(text: str) -> None:
    echo(f"stagescope: {printable(text)}", err=True)


def _metrics(stack: ExitStack, address: str, *, per_rank: bool) -> Callable[[Update], None]:
    """Serve metrics until the stack is left, and return what takes updates."""
    from stagescope.api.metrics_server import MetricsCollector, parse_address, serve_metrics

    host, port = parse_address(address)
    collector = MetricsCollector(per_rank=per_rank)
    chosen = stack.enter_context(serve_metrics(host, port, collector))
    shown = f"[{host}]" if ":" in host else host
    echo(f"stagescope: metrics at http://{shown}:{chosen}/metrics", err=True)
    return collector.add


def _output(stack: ExitStack, watcher: Watcher, *, as_json: bool) -> Callable[[Update], None]:
    import sys

    from stagescope.cli.watch_output import JsonLines, Log, View

    if as_json:
        return JsonLines().show
    if sys.stdout.isatty():
        return View(watcher, stack.enter_context(replaced_text())).show
    return Log(watcher).show
