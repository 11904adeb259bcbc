"""The catalogs: every text that the declared modules show is in them, and no entry can be mistaken for another."""

from __future__ import annotations

import inspect
import re

import click
import pytest

from places import ROOT
from stagescope.cli import COMMANDS, commands
from stagescope.schedules.catalog import SCHEDULES
from stagescope.vocabulary.causes import CAUSES, WAIT_LABELS
from stagescope.vocabulary.kinds import KINDS
from stagescope.vocabulary.language import CHINESE, translated
from stagescope.vocabulary.language.catalog import KINDS as PLACEHOLDERS
from stagescope.vocabulary.language.catalog import PLACEHOLDER, load_catalog, parse_entries
from texts import SOURCE, sentences_of, texts_of
from unseen_texts import CALLS, FUNCTIONS, NAMES, PLACES, is_declared

CATALOG = SOURCE / "vocabulary" / "language" / f"{CHINESE}.po"
ENTRIES = parse_entries(CATALOG.read_text(encoding="utf-8"))

COMPLETE = tuple(
    path.name
    for path in sorted(SOURCE.iterdir())
    if path.is_dir() and any(path.glob("*.py")) and path.name != "demo"
)
"""Parts of the package; the demo trains, and prints nothing of its own."""

COMPOSED = {
    "analysis/graph/causality.py": "begins with a sentence made before",
    "cli/demo.py": "several lines, each of which is looked up",
    "cli/open.py": "the prefix and a diagnostic",
    "cli/reading.py": "the prefix and a diagnostic",
    "cli/store.py": "with counts that are sentences themselves",
    "vocabulary/errors/input.py": "with or without a place before it",
    "vocabulary/errors/output.py": "with or without a source behind it",
}
"""Modules with literals that are shown only after something is put before or behind them; see test_language.py."""

SAMPLES = {
    "name": "7",
    "word": "7",
    "text": "7",
    "list": "7, 8",
    "number": "7",
    "amount": "7.000 ms",
    "ints": "0-3",
    "s": "",
}
"""A value for each kind of placeholder."""


def names(text: str) -> set[str]:
    return {name for name, kind in PLACEHOLDER.findall(text) if kind != "s"}


def example(english: str) -> str:
    return PLACEHOLDER.sub(lambda found: SAMPLES[found[2]], english)


def test_every_kind_of_placeholder_has_a_sample():
    assert SAMPLES.keys() == PLACEHOLDERS.keys()


@pytest.mark.parametrize("part", COMPLETE)
def test_every_text_that_a_part_shows_is_in_the_catalog(part):
    texts = [text for path in sorted((SOURCE / part).rglob("*.py")) for text in texts_of(path)]
    missing = [
        str(text)
        for text in texts
        if text.path not in COMPOSED
        and all(translated(each.removeprefix("stagescope: "), CHINESE) == each for each in text.examples())
    ]
    assert missing == []


def test_a_text_without_a_translation_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("texts.SOURCE", tmp_path)
    path = tmp_path / "planted.py"
    path.write_text('echo(f"no catalog has a translation of {this}")', encoding="utf-8")
    (text,) = texts_of(path)
    assert all(translated(each, CHINESE) == each for each in text.examples())


WORDS = "\n".join(re.sub(r"\{s\d*\}", "", english).lower() for english in ENTRIES)
"""What the catalog has, to look for parts of sentences in it."""

SHORTEST = 3
"""Characters of a part of a sentence that means anything."""


def is_covered(text) -> bool:
    """Return whether the catalog has a text, or the sentences that it is a part of."""
    return all(len(part) < SHORTEST or part in WORDS for part in text.parts()) or any(
        translated(each.removeprefix("stagescope: "), CHINESE) != each for each in text.examples()
    )


def every_sentence():
    return (text for path in sorted(SOURCE.rglob("*.py")) for text in sentences_of(path))


def test_every_sentence_of_the_package_is_in_the_catalog_or_declared_as_unseen():
    """A text is taken to be shown, in a terminal or on a page, unless it is declared with the reason why not."""
    missing = [
        str(text)
        for text in every_sentence()
        if not is_declared(text.path, text.calls, text.name) and not is_covered(text)
    ]
    assert missing == []


def test_a_sentence_in_any_place_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("texts.SOURCE", tmp_path)
    path = tmp_path / "planted.py"
    path.write_text(
        '''"""A docstring of this module."""
REASON = "no catalog has this sentence"
def check(value):
    """Return whether it is right."""
    found = f"nor is {value} of this kind known to it" if value else "right"
    raise Refused(found, hint="neither does it know this hint")
''',
        encoding="utf-8",
    )
    found = sentences_of(path)
    assert [(text.line, text.name, text.calls) for text in found] == [
        (2, "REASON", ()),
        (5, "check", ()),
        (6, "check", ("Refused.hint",)),
    ]
    assert not any(map(is_covered, found))


def test_no_text_is_declared_as_unseen_for_nothing():
    texts = list(every_sentence())
    calls = {call for text in texts for call in text.calls}
    called = {*calls, *(call.partition(".")[0].partition("#")[0] for call in calls)}
    places = {f"{text.path}:{text.name}" for text in texts}
    assert [call for call in CALLS if call not in called] == []
    assert [name for name in (*FUNCTIONS, *NAMES) if name not in {text.name for text in texts}] == []
    assert [place for place in PLACES if place not in places] == []


def test_constraints_and_options_of_every_schedule_are_in_the_catalog():
    texts = {
        *(constraint.needs for schedule in SCHEDULES for constraint in schedule.constraints),
        *(option.meaning for schedule in SCHEDULES for option in schedule.options),
    }
    assert [text for text in sorted(texts) if translated(text, CHINESE) == text] == []


def help_texts() -> set[str]:
    """Return paragraphs, summaries and options of all help pages."""
    found = {command.summary for command in COMMANDS}
    context = click.Context(commands)
    for command in (commands, *(commands.get_command(context, each.name) for each in COMMANDS)):
        for text in filter(None, (command.help, command.epilog)):
            for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
                if not paragraph.startswith("\b"):
                    found.add(" ".join(paragraph.split()))
        found |= {option.help for option in command.params if getattr(option, "help", None)}
    return found


def test_every_paragraph_of_help_is_in_the_catalog():
    assert [text for text in sorted(help_texts()) if translated(text, CHINESE) == text] == []


def test_names_of_causes_waits_and_kinds_are_in_the_catalog():
    labels = [*(cause.label for cause in CAUSES), *WAIT_LABELS.values()]
    labels += [kind.name.replace("_", " ") for kind in KINDS]
    assert [label for label in labels if translated(label, CHINESE) == label] == []


def test_a_translation_has_the_values_of_its_text():
    assert [english for english, chinese in ENTRIES.items() if names(english) != names(chinese)] == []


def test_placeholders_have_known_kinds():
    kinds = {kind for english in ENTRIES for _, kind in PLACEHOLDER.findall(english)}
    assert kinds <= PLACEHOLDERS.keys()


def test_a_text_fits_no_other_template_better():
    """The template that a text fits first is shown like its own."""
    catalog = load_catalog(CHINESE)
    mistaken = []
    for english, chinese in ENTRIES.items():
        text = example(english)
        if text in catalog.texts:
            continue
        fitting = next(each for each in catalog.templates if each.pattern.fullmatch(text))
        own = len(PLACEHOLDER.sub("", english))
        if fitting.literal_length <= own and example(fitting.translation) != example(chinese):
            mistaken.append((english, fitting.translation))
    assert mistaken == []


def test_no_text_is_in_the_catalog_twice():
    content = CATALOG.read_text(encoding="utf-8")
    english = re.findall(r'^msgid "(.+)"$', content, re.MULTILINE)
    assert len(english) == len(set(english)) == len(ENTRIES)


def test_chinese_texts_use_wide_punctuation():
    """A comma or colon between two Chinese characters is a wide one."""
    assert [
        text for text in ENTRIES.values() if re.search("[\u4e00-\u9fff][,:;?!][\u4e00-\u9fff]", text)
    ] == []


def test_the_catalog_is_a_file_of_the_package():
    assert CATALOG.is_relative_to(ROOT / "src" / "stagescope")
