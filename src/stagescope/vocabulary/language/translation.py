"""English texts in the language of the user, with the values in them; what is in no catalog stays English."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from stagescope.vocabulary.language.catalog import PLACEHOLDER, load_catalog
from stagescope.vocabulary.language.choice import ENGLISH, current_language

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stagescope.vocabulary.language.catalog import Template

TRANSLATED = frozenset(("text", "ints", "list"))
"""Kinds of placeholders whose values are translated themselves."""

LONGEST = 2000
"""Longer texts are not sentences of this program; they are not looked up."""

SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z0-9])")
EDGES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)
PARENTHESES = re.compile(r"(.+?) \((.+)\)")
PLACE = re.compile(r"\S+|.*[/\\].*|.*\.\w+", re.DOTALL)
"""A word, a path, an address or the name of a file."""

WORD = re.compile(r"[A-Za-z]{2,}")
UNITS = frozenset(
    ["ns", "us", "ms", "min", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "ppm", "MHz", "CI"]
)
NEUTRAL = frozenset(["FB", "OVERLAP_F_B"])
WIDE = "[，。；：（）、\u4e00-\u9fff]"
PUNCTUATION = "[，。；：（）、]"
LOOSE = re.compile(f"(?<={WIDE}) (?={WIDE})|(?<={PUNCTUATION}) | (?={PUNCTUATION})")
"""Blanks beside wide characters, which templates have for values in Latin letters."""

JOINERS = (("; ", "；"), (": ", "："), (", ", "，"), (" and ", " 和 "), (" or ", " 或 "))
"""What parts of a sentence are joined with, the loosest first, and what Chinese writes for it."""


class Foreign(str):
    """Text of other people, such as the name of a machine: it is never looked up."""

    __slots__ = ()


def localized(text: str) -> str:
    """Return an English text of this program in the current language."""
    return translated(text, current_language())


def localized_list(texts: Iterable[str]) -> tuple[str, ...]:
    """Return several texts in the current language."""
    return tuple(map(localized, texts))


def translated(text: str, language: str) -> str:
    """Return an English text in a language: that of the catalog if it has the text or a template that fits it.

    Texts that consist of sentences, clauses or lists are translated part by part, if every part can be.
    """
    if language == ENGLISH or isinstance(text, Foreign) or not text.strip() or len(text) > LONGEST:
        return text
    found = _known(text, language)
    return text if found is None else found


@lru_cache(maxsize=8192)
def _known(text: str, language: str, *, wholly: bool = False) -> str | None:
    """Return the translation of a text, None if there is none; `wholly`: only if all texts in it are translated."""
    edges = EDGES.fullmatch(text)
    before, core, after = edges.groups() if edges else ("", text, "")
    found = _entry(core, language)
    if found is None and not wholly:
        found = _partial(core, language)
    return None if found is None else f"{before}{found}{after}"


def _entry(core: str, language: str) -> str | None:
    """Return the translation of a text that is in the catalog as it is, or fits a template, or consists of such."""
    texts = load_catalog(language).texts
    exact = texts.get(core) or texts.get(core[:1].swapcase() + core[1:])
    if exact:
        return exact
    sentences = SENTENCE_END.split(core)
    if len(sentences) > 1 and (found := _joined(sentences, "", language)) is not None:
        return found
    for template, match in _matches(core, language):
        if _is_whole(match, language):
            return _filled(template, match.groupdict(), language)
    return _placed(core, language) or _composed(core, language)


def _placed(core: str, language: str) -> str | None:
    """Return the translation of a text behind a place, such as a path or the name of a schedule, which is kept."""
    at = -1
    while (at := core.find(": ", at + 1)) > 0:
        if (
            PLACE.fullmatch(core[:at])
            and (found := _known(core[at + 2 :], language, wholly=True)) is not None
        ):
            return f"{core[:at]}：{found}"
    return None


def _partial(core: str, language: str) -> str | None:
    """Return the translation of a text with something unknown in it, which stays English."""
    sentences = SENTENCE_END.split(core)
    if len(sentences) > 1:
        found = [_known(sentence, language) for sentence in sentences]
        if None not in found:
            return "".join(each for each in found if each is not None)
    found_first = next(_matches(core, language), None)
    return found_first and _filled(found_first[0], found_first[1].groupdict(), language)


def _matches(core: str, language: str) -> Iterator[tuple[Template, re.Match[str]]]:
    """Yield the templates that a text fits, the most specific first; those in the catalog's own case come first."""
    templates = load_catalog(language).templates
    for template in templates:
        if match := _match(template, core):
            yield template, match
    # The beginning of a sentence, unless a value is there, whose case is its own.
    other = core[:1].swapcase() + core[1:]
    for template in templates:
        if template.literals[0] and (match := _match(template, other)):
            yield template, match


def _match(template: Template, core: str) -> re.Match[str] | None:
    if not all(literal in core for literal in template.literals):
        return None
    return template.pattern.fullmatch(core)


def _is_whole(match: re.Match[str], language: str) -> bool:
    """Return whether every text within a text is translated, too; another template may fit it better."""
    texts = (
        part
        for name, value in match.groupdict().items()
        if name.rstrip("0123456789") in TRANSLATED
        for part in (split_outside(value, ", ") if name.startswith("list") else [value])
    )
    return all(is_neutral(part) or _known(part, language, wholly=True) for part in texts)


def _filled(template: Template, values: dict[str, str], language: str) -> str:
    def value(placeholder: re.Match[str]) -> str:
        found, kind = values[placeholder[1]], placeholder[2]
        if kind in ("text", "ints"):
            return translated(found, language)
        if kind == "list":
            return "，".join(translated(part, language) for part in split_outside(found, ", "))
        return found

    return LOOSE.sub("", PLACEHOLDER.sub(value, template.translation))


def _composed(core: str, language: str) -> str | None:
    """Return a translation of the parts of a text, None unless each of them has one."""
    if core[-1] in ".:" and len(core) > 1:
        inner = _part(core[:-1], language)
        return None if inner is None else inner + {".": "。", ":": "："}[core[-1]]
    for separator, joiner in JOINERS:
        parts = split_outside(core, separator)
        if len(parts) > 1:
            found = _joined(parts, joiner, language)
            if found is not None:
                return found
    inside = PARENTHESES.fullmatch(core)
    if inside and not is_neutral(core):
        outer, inner = (_part(each, language) for each in inside.groups())
        return None if outer is None or inner is None else f"{outer}（{inner}）"
    return None


def _joined(parts: list[str], joiner: str, language: str) -> str | None:
    found = [_part(part, language) for part in parts]
    if all(map(is_neutral, parts)) or None in found:
        return None
    return joiner.join(each for each in found if each is not None)


def _part(part: str, language: str) -> str | None:
    return part if is_neutral(part) else _known(part, language, wholly=True)


def is_neutral(text: str) -> bool:
    """Return whether a text is the same in every language: numbers, units and actions such as F0.3."""
    return all(word in UNITS or word in NEUTRAL for word in WORD.findall(text))


def split_outside(text: str, separator: str) -> list[str]:
    """Return the parts of a text between separators that are not in parentheses or quotes."""
    return list(_parts(text, separator))


def _parts(text: str, separator: str) -> Iterator[str]:
    depth, begin, place = 0, 0, 0
    while place < len(text):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth <= 0 and text.startswith(separator, place):
            yield text[begin:place]
            place += len(separator)
            begin = place
        else:
            place += 1
    yield text[begin:]
