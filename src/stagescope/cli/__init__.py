"""The command line: one module per command, imported when it is called and not before.

Each module has a click command named `command`. It returns its exit code (None stands for 0) or raises;
`main` is the one place that turns errors into words and exit codes.
"""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

import click

from stagescope import __version__
from stagescope.vocabulary.errors import StagescopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "stagescope"
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program ended by SIGINT and by SIGPIPE."""


class Command(NamedTuple):
    """One command: its name, the module it lives in, and what it does in one line."""

    name: str
    module: str
    summary: str


COMMANDS: tuple[Command, ...] = (
    Command("run", "stagescope.cli.run", "Run a training command with recording on, its code unchanged."),
    Command("show", "stagescope.cli.show", "Show a chart of one step and the main figures in the terminal."),
    Command("open", "stagescope.cli.open", "Show a run in the browser, from a server on this machine alone."),
    Command(
        "report", "stagescope.cli.report", "Say where the time of a run went, and what would win it back."
    ),
    Command(
        "clocks", "stagescope.cli.clocks", "Tell how the clocks of several machines were brought to one."
    ),
    Command("compare", "stagescope.cli.compare", "Tell what got slower or faster from one run to another."),
    Command(
        "what-if", "stagescope.cli.what_if", "Predict the step time if stages, links or schedule changed."
    ),
    Command("export", "stagescope.cli.export", "Write a run as a picture, a trace for a viewer, or a table."),
    Command("simulate", "stagescope.cli.simulate", "Simulate a schedule: picture, figures, comparison."),
    Command(
        "paddle",
        "stagescope.cli.paddle",
        "Write the profiles that Paddle's own tool makes of worker logs.",
    ),
    Command(
        "pp-chart",
        "stagescope.cli.pp_chart",
        "Write MindStudio Insight's pipeline chart for Ascend profiles.",
    ),
    Command(
        "demo", "stagescope.cli.demo", "Train a small real pipeline on this machine, record and show it."
    ),
)


class LazyGroup(click.Group):
    """The commands of COMMANDS; listing them imports none of them, so that --help stays instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in declared order."""
        return [command.name for command in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - same
        """Return the command of that name, imported now."""
        for command in COMMANDS:
            if command.name == cmd_name:
                found = import_module(command.module).command
                return found if isinstance(found, click.Command) else None
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - same
        """Write the list of commands from their declared summaries."""
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

    stagescope COMMAND --help says more about one command.
    """,
)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def commands() -> None:
    """See, explain and shrink the bubble of pipeline-parallel training."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code of one call; `arguments` are those of the process unless given.

    0: done. 1: a mistake in what was given, or a result from incomplete data. 2: wrong usage. 3: a condition of
    --fail-if holds. 126 and 127: a program could not be started. 130: interrupted. 141: whoever read the output
    stopped reading.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file name may hold bytes that the terminal's encoding cannot carry: no reason to fail.
        sys.stdout.reconfigure(errors="replace")
    try:
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes standard output once more at exit, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


def _run(arguments: list[str]) -> int:
    """Return the exit code of the command that `arguments` name, having said why where it failed."""
    if "_STAGESCOPE_COMPLETE" in os.environ:  # a shell asks for completions; click answers and exits
        commands.main(arguments, prog_name=PROGRAM)
    try:
        with commands.make_context(PROGRAM, arguments) as context:
            code = commands.invoke(context)
    except StagescopeError as error:
        click.echo(f"{PROGRAM}: {error}", err=True)
        if error.hint:
            click.echo(f"  {error.hint}", err=True)
        return error.exit_code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        click.echo(f"{PROGRAM}: interrupted", err=True)
        return EXIT_INTERRUPTED
    return code if isinstance(code, int) else 0
