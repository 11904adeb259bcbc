"""Diagnostics as lines of text."""

import sys

import pytest

from stagescope.cli.console import terminal_width
from stagescope.cli.diagnostics import MOST_LINES, diagnostic_lines, print_diagnostics
from stagescope.model.diagnostics import Diagnostic


def test_a_line_has_message_source_rank_location_and_count():
    row = Diagnostic("error", "spans lost", "a.sscope", 3, "byte 7", 12, code="test.finding")
    assert list(diagnostic_lines([row])) == ["error: spans lost [a.sscope, rank 3, byte 7, count 12]"]


def test_omits_unknown_facts_and_those_in_the_message():
    rows = [
        Diagnostic("info", "all well", code="test.finding"),
        Diagnostic("warning", "not read: a.csv: no", "a.csv", code="test.finding"),
    ]
    assert list(diagnostic_lines(rows)) == ["info: all well", "warning: not read: a.csv: no"]


def test_prints_the_first_of_many_and_counts_the_others():
    lines = list(
        diagnostic_lines(
            [Diagnostic("info", str(number), code="test.finding") for number in range(MOST_LINES + 5)]
        )
    )
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "... and 5 more; stagescope report --json lists all"


def test_prints_nothing_without_diagnostics(capsys):
    print_diagnostics([])
    assert capsys.readouterr().out == ""


def test_wraps_at_words_on_a_terminal_and_never_in_a_pipe(capsys, monkeypatch):
    row = Diagnostic("info", "a word " * 30 + "a/path/of-many/parts", code="test.finding")
    print_diagnostics([row])
    assert len(capsys.readouterr().out.splitlines()) == 2
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    print_diagnostics([row])
    _, first, *others = capsys.readouterr().out.splitlines()
    assert max(map(len, (first, *others))) <= 60
    assert others
    assert all(line.startswith("  ") for line in others)


@pytest.mark.parametrize(("stated", "width"), [("123", 123), ("7", 40), ("0", 80), ("wide", 80), ("", 80)])
def test_a_pipe_is_as_wide_as_columns_states(monkeypatch, stated, width):
    monkeypatch.setenv("COLUMNS", stated)
    assert terminal_width() == width
