"""The option --lang, and help pages in the language that it chooses."""

from __future__ import annotations

import os
import re
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from stagescope.vocabulary.language import (
    CHINESE,
    ENGLISH,
    LANGUAGES,
    cell_width,
    current_language,
    language_of,
    localized,
    padded,
    wrapped,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OPTION = "--lang"
ASCII = "--ascii"
NEEDED = "中▌█·µ"
"""Characters that the encoding of a terminal must have for Chinese with charts."""

UNCHANGED = "\b"
"""click's mark of a paragraph whose lines are kept as they are."""

FACTS = re.compile(r"(?P<text>.*?)(?:  \[(?P<facts>[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*)\])?", re.DOTALL)
"""A help text, and what click states behind it in brackets, such as the default."""


def language_of_call(arguments: Sequence[str]) -> str:
    """Return the language of a call: that of --lang, which may be anywhere before --, or of the environment.

    English with --ascii, and if standard output could not show the other one.
    """
    own = list(arguments)[: list(arguments).index("--")] if "--" in arguments else list(arguments)
    stated = [value for name, value in pairwise(own) if name == OPTION]
    stated += [each.partition("=")[2] for each in own if each.startswith(f"{OPTION}=")]
    language = stated[-1] if stated else language_of(os.environ)
    return language if language != CHINESE or (shows_chinese() and ASCII not in own) else ENGLISH


def shows_chinese() -> bool:
    """Return whether the encoding of standard output has the characters of Chinese texts and of charts."""
    try:
        NEEDED.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def with_language(command: click.Command) -> click.Command:
    """Return a command with the option --lang and help pages that it translates.

    The option is read before click parses the arguments, because help pages and errors are shown during that.
    """
    command.context_class = HelpContext
    if not any(OPTION in parameter.opts for parameter in command.params):
        command.params.append(
            click.Option(
                [OPTION],
                type=click.Choice(LANGUAGES),
                expose_value=False,
                help="Language of texts: English or Simplified Chinese; omit for that of the environment.",
            )
        )
    return command


class HelpFormatter(click.HelpFormatter):
    """A help page in the current language; in English, that of click."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line with the usage."""
        if current_language() == ENGLISH:
            super().write_usage(prog, args, prefix)
        else:
            self.write(f"{prefix or localized('Usage:')}{prog} {args}".rstrip() + "\n")

    def write_heading(self, heading: str) -> None:
        """Write the heading of a section."""
        self.write(f"{'':>{self.current_indent}}{localized(f'{heading}:')}\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs."""
        if current_language() == ENGLISH:
            super().write_text(text)
            return
        indent = " " * self.current_indent
        blocks = []
        for paragraph in re.split(r"\n\s*\n", text):
            lines = paragraph.split("\n")
            if lines[0].strip() == UNCHANGED:
                blocks.append("\n".join(f"{indent}{localized(line)}".rstrip() for line in lines[1:]))
            else:
                blocks.append("\n".join(wrapped(" ".join(paragraph.split()), self.width, indent, indent)))
        self.write("\n\n".join(blocks) + "\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands with what they do."""
        if current_language() == ENGLISH:
            super().write_dl(rows, col_max, col_spacing)
            return
        every = list(rows)
        first_width = min(max(cell_width(name) for name, _ in every), col_max) + col_spacing
        indent = " " * self.current_indent
        later = indent + " " * first_width
        for name, text in every:
            lines = wrapped(_with_facts(text), self.width, later, later)
            if cell_width(name) + col_spacing <= first_width and lines:
                lines[0] = padded(f"{indent}{name}", cell_width(later)) + lines[0][len(later) :]
            else:
                lines.insert(0, f"{indent}{name}")
            self.write("\n".join(lines) + "\n")


class HelpContext(click.Context):
    """A context whose help pages are in the current language."""

    formatter_class = HelpFormatter


def _with_facts(text: str) -> str:
    """Return a help text in the current language, with what click states behind it in brackets."""
    found = FACTS.fullmatch(text)
    if found is None or found["facts"] is None:
        return localized(text)
    facts = "；".join(localized(fact) for fact in found["facts"].split("; "))
    return f"{localized(found['text'])} [{facts}]"
