"""The checker of retired words: which words it reports, where it allows them, and its exit status."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIST = """
[terms]
"said" = "stated"
"jobs?" = "action"

[[exceptions]]
paths = ["docs/paddle.md"]
terms = ["jobs?"]
reason = "Paddle's own word"
"""


@pytest.fixture(scope="module")
def checker():
    specification = importlib.util.spec_from_file_location("check_terms", ROOT / "tools" / "check_terms.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_reports_line_word_and_replacement(checker):
    findings = checker.Rules(LIST).findings("a.py", "x = 1\n# as said above\n")
    assert [str(each) for each in findings] == ["a.py:2: 'said' is retired; write stated"]


@pytest.mark.parametrize("text", ["Said so", "what_was_said", "said2", "every job", "jobs, jobs"])
def test_finds_words_in_any_case_and_within_identifiers(checker, text):
    assert checker.Rules(LIST).findings("a.py", text)


@pytest.mark.parametrize("text", ["unsaid", "saids", "jobless", "aforesaid"])
def test_ignores_parts_of_longer_words(checker, text):
    assert checker.Rules(LIST).findings("a.py", text) == []


def test_allows_a_term_only_in_the_paths_of_its_exception(checker):
    rules = checker.Rules(LIST)
    assert rules.findings("docs/paddle.md", "a Job line") == []
    assert len(rules.findings("docs/paddle.md", "as said")) == 1
    assert len(rules.findings("docs/kineto.md", "a Job line")) == 1


def test_reports_exceptions_that_are_no_longer_needed(checker):
    rules = checker.Rules(LIST)
    assert rules.unused() == ["['docs/paddle.md']: 'jobs?' is no longer needed"]
    rules.findings("docs/paddle.md", "a Job line")
    assert rules.unused() == []


@pytest.fixture
def checked(checker, tmp_path, monkeypatch):
    """Return a function that checks one file with the given content and returns the exit status."""
    (tmp_path / "terms.toml").write_text(LIST, encoding="utf-8")
    monkeypatch.setattr(checker, "ROOT", tmp_path)
    monkeypatch.setattr(checker, "LIST", tmp_path / "terms.toml")
    monkeypatch.setattr(checker, "checked_files", lambda paths: paths)

    def check(content):
        (tmp_path / "a.py").write_text(content, encoding="utf-8")
        return checker.main(["a.py"])

    return check


@pytest.mark.parametrize(("content", "status"), [("# stated\n", 0), ("# said\n", 1)])
def test_exit_status_is_1_if_a_word_was_found(checked, capsys, content, status):
    assert checked(content) == status
    assert ("a.py:1: 'said' is retired" in capsys.readouterr().out) == bool(status)


def test_every_exception_of_the_project_has_a_reason(checker):
    rules = checker.Rules(checker.LIST.read_text(encoding="utf-8"))
    assert all(exception["reason"].strip() for exception in rules.exceptions)
