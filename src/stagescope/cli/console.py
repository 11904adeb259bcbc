"""The only module that writes to the terminal: everything passes through `printable_lines`.

Names in recordings and traces come from other people's files. The architecture test forbids every other way of
printing in the command line.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from stagescope.vocabulary.language import localized
from stagescope.vocabulary.printable import printable_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from rich.console import Console
    from rich.text import Text

PREFIX = "stagescope: "
PIPE_WIDTH = 80
LEAST_WIDTH = 40


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text for people in their language and, with `nl`, a line break, to standard output or error."""
    echo_data("\n".join(map(_localized_line, str(text).split("\n"))), err=err, nl=nl)


def _localized_line(line: str) -> str:
    """Return a line in the current language; the name of the program before a message remains."""
    message = line.removeprefix(PREFIX)
    return f"{line[: len(line) - len(message)]}{localized(message)}"


def echo_data(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text as it is: for programs, of other people, or composed in the language of the user."""
    click.echo(printable_lines(text), err=err, nl=nl)


def echo_exactly(text: str) -> None:
    """Print a line for a shell to evaluate, unchanged; `text` has nothing but the settings of this call."""
    click.echo(text)


def print_file(path: Path) -> None:
    """Print the bytes of a file, which is for a program."""
    with path.open("rb") as file:
        sys.stdout.flush()
        shutil.copyfileobj(file, sys.stdout.buffer)


def echo_click_error(error: click.ClickException) -> None:
    """Print an error that click has found in the arguments, which may be names of files."""
    with io.StringIO() as shown:
        error.show(shown)
        for line in shown.getvalue().splitlines():
            echo(line, err=True)


def print_styled(text: Text, width: int) -> None:
    """Print text with its colors to standard output, a terminal of `width` characters."""
    from rich.console import Console

    safe = text.copy()
    safe.plain = printable_lines(text.plain)  # of the same length, so that the styles remain where they are
    Console(width=width, highlight=False).print(safe)


def terminal_width() -> int:
    """Return the width of the terminal in characters; if standard output is none, that in COLUMNS, by default 80."""
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    else:
        stated = os.environ.get("COLUMNS", "")
        columns = int(stated) if stated.isdecimal() and int(stated) else PIPE_WIDTH
    return max(LEAST_WIDTH, columns)


@contextmanager
def replaced_text() -> Iterator[Callable[[str], object]]:
    """Yield a function that replaces the text it has shown on the terminal by another one."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    with Live(Text(), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda text: live.update(Text(printable_lines(text), no_wrap=True), refresh=True)


def has_sixteen_colors() -> bool:
    """Return whether standard output is a terminal with 16 colors, as far as its environment states."""
    from rich.console import Console

    return Console().color_system == "standard"


def error_console() -> Console:
    """Return the console of progress bars, on standard error; nothing foreign is written to it."""
    from rich.console import Console

    return Console(stderr=True)
