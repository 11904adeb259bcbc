"""The catalog of translations: a file of GNU gettext with English texts and, for each, the text in one language.

An English text may have placeholders in braces. Their names state what may be there and what becomes of it: see KINDS.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

KINDS: dict[str, str] = {
    "name": r".+?",
    "word": r"\S+",
    "text": r".+?",
    "list": r".+?",
    "number": r"[-+]?\d[\d,.]*",
    "amount": r"[-+]?\d[\d,.]* ?(?:s|ms|µs|us|ns|%|ppm|[kKMGT]?i?B|x)",
    "ints": r"\d[\d, -]*(?: and \d+ more)?",
    "s": r"(?:e?s)?",
}
"""What a placeholder matches, by its name without digits at its end.

Names, single words and numbers, also with units, are kept as they are; a text, whole numbers (some may only be counted)
and the parts of a list are translated themselves; the s of a plural is dropped.
"""

PATTERNS = {**KINDS, "first": r"(?:(?!: ).)+?"}
"""A name that begins a text ends before a colon, behind which the text has a sentence of its own."""

PLACEHOLDER = re.compile(r"\{(([a-z]+)\d*)\}")
ENTRY = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n)+)', re.MULTILINE)


class Template(NamedTuple):
    """An English text with placeholders: its literal parts, the expression of its pattern, and its translation."""

    literals: tuple[str, ...]
    expression: str
    translation: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """The pattern that its texts match. Few are ever needed: compiling all takes a third of a second."""
        return _compiled(self.expression)

    @property
    def literal_length(self) -> int:
        """How many of its characters are not placeholders; the most specific template has the most."""
        return sum(map(len, self.literals))


class Catalog(NamedTuple):
    """Texts without placeholders by their English form, and templates, the most specific first."""

    texts: dict[str, str]
    templates: tuple[Template, ...]


def parse_entries(content: str) -> dict[str, str]:
    """Return the translations of a catalog file by their English texts, without its header and empty ones."""
    entries = {
        _joined(english): _joined(other) for english, other in ENTRY.findall(content.replace("\r\n", "\n"))
    }
    return {english: other for english, other in entries.items() if english and other}


def _joined(lines: str) -> str:
    return "".join(str(json.loads(line)) for line in lines.splitlines())


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.DOTALL)


@cache
def load_catalog(language: str) -> Catalog:
    """Return the catalog of a language, which is read once per process."""
    content = Path(__file__).with_name(f"{language}.po").read_text(encoding="utf-8")
    entries = parse_entries(content)
    templates = [_template(*entry) for entry in entries.items() if PLACEHOLDER.search(entry[0])]
    templates.sort(key=lambda each: -each.literal_length)
    texts = {english: other for english, other in entries.items() if not PLACEHOLDER.search(english)}
    return Catalog(texts, tuple(templates))


def _template(english: str, translation: str) -> Template:
    pieces = PLACEHOLDER.split(english)  # literal, name, kind, literal, ...
    if not pieces[0] and pieces[2] == "name":
        pieces[2] = "first"
    expression = "".join(
        (re.escape(piece), f"(?P<{piece}>", f"{PATTERNS.get(piece, '')})")[place % 3]
        for place, piece in enumerate(pieces)
    )
    return Template(tuple(pieces[::3]), expression, translation)
