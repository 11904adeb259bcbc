"""The command line: one module per command, imported when the command runs.

Each module has a click command named `command`, which returns its exit code (None is 0) or raises. Only `main` turns
errors into messages and exit codes.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from stagescope import __version__
from stagescope.cli.help_language import language_of_call, with_language
from stagescope.cli.interrupts import interrupts_kept
from stagescope.vocabulary.errors import StagescopeError
from stagescope.vocabulary.errors.input import STORE_AGAIN
from stagescope.vocabulary.language import speaking
from stagescope.vocabulary.nearest_names import nearest_name

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "stagescope"
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""The exit codes that shells report for a program terminated by SIGINT and by SIGPIPE."""

MOST_CHARACTERS = 200
"""Of a path in an error."""

AFTER_INTERRUPT: dict[str | None, str] = {"store": STORE_AGAIN}
"""What to do after Ctrl-C, by command."""

LESS_MEMORY = "read some steps, as with --steps 0:10, or some of the files, or store recordings first"
"""What to do if there was not enough memory."""


class Command(NamedTuple):
    """One command: its name, its module, and its summary in one line."""

    name: str
    module: str
    summary: str


COMMANDS: tuple[Command, ...] = (
    Command("run", "stagescope.cli.run", "Run a training command and record it, without code changes."),
    Command(
        "install-hook",
        "stagescope.cli.install_hook",
        "Let trainings record themselves, without `stagescope run`.",
    ),
    Command("watch", "stagescope.cli.watch", "Watch a training while it runs, with alarms."),
    Command("hang", "stagescope.cli.hang", "Report which rank holds up a training that hangs."),
    Command("control", "stagescope.cli.control", "Change what a running training records."),
    Command("show", "stagescope.cli.show", "Show a chart of one step and its times in the terminal."),
    Command("open", "stagescope.cli.open", "Open a run in the browser, from a server on this machine."),
    Command("report", "stagescope.cli.report", "Report where the time went and how to reduce step time."),
    Command("clocks", "stagescope.cli.clocks", "Show how the clocks of all machines were aligned."),
    Command("compare", "stagescope.cli.compare", "Report what got slower or faster between two runs."),
    Command(
        "what-if", "stagescope.cli.what_if", "Predict step time if stages, links or the schedule changed."
    ),
    Command("export", "stagescope.cli.export", "Write a run as a picture, a trace for a viewer, or a table."),
    Command("sql", "stagescope.cli.sql", "Query the tables of a run with SQL."),
    Command("store", "stagescope.cli.store", "Store a run as Parquet files that every command reads."),
    Command("cache", "stagescope.cli.cache", "List what is kept in the cache of this user, or remove it."),
    Command("inspect", "stagescope.cli.inspect", "List what is in a trace and propose how to read it."),
    Command("simulate", "stagescope.cli.simulate", "Simulate a schedule: draw it, measure it, compare it."),
    Command(
        "paddle",
        "stagescope.cli.paddle",
        "Write the profiles of Paddle's own tool from worker logs.",
    ),
    Command(
        "pp-chart",
        "stagescope.cli.pp_chart",
        "Add MindStudio Insight's pipeline chart to Ascend profiles.",
    ),
    Command(
        "receive", "stagescope.cli.receive", "Receive OpenTelemetry traces of a training on this machine."
    ),
    Command("demo", "stagescope.cli.demo", "Train, record and analyze a small pipeline on this machine."),
)


class LazyGroup(click.Group):
    """The commands of COMMANDS; listing them imports none of them, which keeps --help instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of COMMANDS."""
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        """Import and return the command of that name."""
        for command in COMMANDS:
            if command.name == cmd_name:
                found = import_module(command.module).command
                return with_language(found) if isinstance(found, click.Command) else None
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names; an unknown one is an error that suggests a known one."""
        name, names = args[0], self.list_commands(ctx)
        nearest = None if name in names or name.startswith("-") else nearest_name(name, names)
        if nearest:
            ctx.fail(f"No such command {name!r}. Did you mean {nearest!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        """Write the list of commands with their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.summary) for command in COMMANDS])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""
    \b
    Examples:
      stagescope demo
      stagescope run -o recordings -- torchrun --nproc-per-node 4 train.py
      stagescope show recordings
      stagescope export recordings -o recordings.pftrace

    stagescope COMMAND --help describes one command.
    """,
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def commands() -> None:
    """See, explain and shrink the bubble of pipeline-parallel training."""


with_language(commands)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of one call; `arguments` defaults to those of the process.

    0: success. 1: an error in the input, or a result from incomplete data. 2: wrong usage. 3: a condition of --fail-if
    holds. 126 and 127: a program could not be started. 130: interrupted. 141: the reader of standard output closed it.
    `stagescope run` returns the exit code of its command.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name may contain bytes that the encoding of the terminal does not have; print ? for them.
        sys.stdout.reconfigure(errors="replace")
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with speaking(language_of_call(given)):
            code = _run(given)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output again at exit and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


def _run(arguments: list[str]) -> int:
    """Run the command that `arguments` name, print the error if it fails, and return the exit code."""
    if "_STAGESCOPE_COMPLETE" in os.environ:  # a shell requests completions; click prints them and exits
        commands.main(arguments, prog_name=PROGRAM)
    try:
        code = _invoke(arguments)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (StagescopeError, click.ClickException, KeyboardInterrupt, click.Abort, MemoryError) as error:
        return _print_error(error)
    except OSError as error:  # such as for a name that is longer than the system allows
        if error.filename is None:  # of a pipe or a connection, and no fault of a file
            raise
        return _print_error(error)
    return code if isinstance(code, int) else 0


def _invoke(arguments: list[str]) -> object:
    """Return what the command returns. Raises KeyboardInterrupt after Ctrl-C, whatever became of that."""
    kept, name = interrupts_kept(), None
    try:
        with kept, commands.make_context(PROGRAM, arguments) as context:
            try:
                code: object = commands.invoke(context)
            finally:
                name = context.invoked_subcommand
    except BaseException as error:  # may be what a library made of it; a panic of Polars is no Exception
        if isinstance(error, KeyboardInterrupt) or (
            kept.is_interrupted and not isinstance(error, SystemExit)
        ):
            raise KeyboardInterrupt(AFTER_INTERRUPT.get(name, "")) from error
        raise
    if kept.is_interrupted:
        raise KeyboardInterrupt(AFTER_INTERRUPT.get(name, ""))
    return code


def _print_error(error: BaseException) -> int:
    """Print why a command failed, and return the exit code."""
    from stagescope.cli.console import echo, echo_click_error

    if isinstance(error, StagescopeError):
        echo(f"{PROGRAM}: {error}", err=True)
        if error.hint:
            echo(f"  {error.hint}", err=True)
        return error.exit_code
    if isinstance(error, click.ClickException):
        echo_click_error(error)
        return error.exit_code
    if isinstance(error, OSError):
        echo(f"{PROGRAM}: {str(error.filename)[:MOST_CHARACTERS]}: {error.strerror}", err=True)
        return EXIT_FAILED
    # Of NumPy or pyarrow: Polars ends the process with a message of its own.
    if isinstance(error, MemoryError):
        echo(f"{PROGRAM}: this needs more memory than there is ({error})", err=True)
        echo(f"  {LESS_MEMORY}", err=True)
        return EXIT_FAILED
    echo(f"{PROGRAM}: interrupted", err=True)
    if str(error):
        echo(f"  {error}", err=True)
    return EXIT_INTERRUPTED
