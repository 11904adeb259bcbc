"""Diagnostics as lines of text, in the same form for every command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stagescope.cli.console import echo, echo_data, terminal_width
from stagescope.vocabulary.language import localized, wrapped
from stagescope.vocabulary.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stagescope.model.diagnostics import Diagnostic

MOST_LINES = 20


def print_diagnostics(diagnostics: Sequence[Diagnostic], *, err: bool = False) -> None:
    """Print diagnostics after an empty line, with `err` to standard error; print nothing if there are none.

    They are wrapped on a terminal. In a pipe each is one line, for programs that look for them.
    """
    if diagnostics:
        echo(err=err)
    is_terminal = (sys.stderr if err else sys.stdout).isatty()
    for line in diagnostic_lines(diagnostics):
        echo_data(_wrapped(line, terminal_width()) if is_terminal else line, err=err)


def _wrapped(line: str, width: int) -> str:
    """Return a line without breaks in words, such as paths, with indented continuations."""
    return "\n".join(wrapped(line, width, later="  ", keeps_words=True))


def diagnostic_lines(diagnostics: Sequence[Diagnostic], most: int = MOST_LINES) -> Iterator[str]:
    """Yield one line per diagnostic in the given order, and after `most` of them how many are not shown."""
    for one in diagnostics[:most]:
        yield printable(localized(f"{one.severity}: {one.message}") + _facts(one))
    if len(diagnostics) > most:
        yield localized(f"... and {len(diagnostics) - most} more; stagescope report --json lists all")


def _facts(one: Diagnostic) -> str:
    """Return where and how often, if it is known and not part of the message."""
    facts = (
        one.source if one.source and one.source not in one.message else None,
        localized(f"rank {one.rank}") if one.rank is not None else None,
        localized(one.location) if one.location else None,
        localized(f"count {one.count}") if one.count > 1 else None,
    )
    known = ", ".join(fact for fact in facts if fact)
    return f" [{known}]" if known else ""
