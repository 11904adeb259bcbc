"""Texts of a page's data in other languages: sentences and labels that Python wrote, each with its translations.

A page has them for every language, so that it can be shown in each, whatever it was written in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stagescope.vocabulary.counters import COUNTERS
from stagescope.vocabulary.language import ENGLISH, LANGUAGES, translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

SEPARATOR = " · "
"""What separates the facts of a title."""


def translations_of(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the translations of texts by language; what has none is left out."""
    every = dict.fromkeys(texts)
    found = {
        language: {text: other for text in every if (other := _translated(text, language)) != text}
        for language in LANGUAGES
        if language != ENGLISH
    }
    return {language: texts for language, texts in found.items() if texts}


def _translated(text: str, language: str) -> str:
    return SEPARATOR.join(translated(part, language) for part in text.split(SEPARATOR))


def with_message(facts: Mapping[str, Any], name: str, message: str | None) -> dict[str, Any]:
    """Return facts and, by `name`, a message about them with its translations, if it has any."""
    found = translations_of([message]) if message else {}
    return {**facts, name: message, **({"translations": found} if found else {})}


def meta_translations(meta: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the translations for a meta object; the title of the document has the name of a file in it as it is."""
    found = translations_of(_texts_of_meta(meta))
    for texts in found.values():
        title = meta["title"]
        texts[meta["document_title"]] = meta["document_title"].replace(title, texts.get(title, title))
    return found


def _texts_of_meta(meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield the title, the names and meanings of kinds and waits, and the diagnostics of a meta object."""
    yield meta["title"]
    for kind in meta["kinds"]:
        yield from (kind["name"].replace("_", " "), kind["meaning"])
    for wait in meta["waits"]:
        yield from (wait["name"].replace("_", " "), wait["label"])
    yield from (counter.name for counter in COUNTERS)
    for diagnostic in meta["diagnostics"]:
        yield from filter(None, (diagnostic["message"], diagnostic.get("location")))


def texts_of_objects(objects: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentences and labels of verdict, table of what was understood, ledger and comparison."""
    verdict = objects.get("verdict") or {}
    yield from filter(None, (verdict.get(name) for name in ("why", "improvement", "tested")))
    for finding in verdict.get("findings", ()):
        yield finding["text"]
    for row in objects.get("understood", ()):
        yield from row
    ledger = objects.get("ledger") or {}
    for each in (ledger, *ledger.get("parts", ())):
        yield from filter(None, (each.get(name) for name in ("denominator", "label", "meaning")))
    comparison = objects.get("comparison") or {}
    yield from comparison.get("sentences", ())
    for diagnostic in comparison.get("diagnostics", ()):
        yield diagnostic["message"]


def with_translations(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return objects of a page with the translations of their texts; empty objects as they are."""
    found = translations_of(texts_of_objects(objects))
    return {**objects, **({"translations": found} if found else {})}
